"""The examples, as they are, with a rank for each of four stages."""

import socket
from pathlib import Path

import example
import orders
import pytest
from ranks import PATIENCE_S, RANKS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MICROBATCHES, STEPS = 8, 5


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("name", ["pipelining_trainer", "deepspeed_trainer", "megatron_trainer"])
def test_an_example_tells_of_every_instruction(frameworks, recorders, tmp_path, name):
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(RANKS)}
    logs = [tmp_path / f"{rank}.log" for rank in range(RANKS)]
    processes = [
        frameworks.Process(
            target=example.run, args=(EXAMPLES / f"{name}.py", rank, {**rendezvous, **environment}, log)
        )
        for rank, (environment, log) in enumerate(zip(recorders.environments, logs))
    ]
    for process in processes:
        process.start()
    for process, log in zip(processes, logs):
        process.join(PATIENCE_S)
        assert process.exitcode == 0, log.read_text()
    order = orders.of_deepspeed if name == "deepspeed_trainer" else orders.one_forward_one_backward
    told = [{"order": order(rank, RANKS, MICROBATCHES)} for rank in range(RANKS)]
    recorders.expect(told, STEPS)
