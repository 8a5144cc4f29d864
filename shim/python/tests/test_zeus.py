"""A trainer written for Zeus' pipeline frequency optimizer, with another import line."""

import sys
import types

import pytest

import pfo_gpu
from pfo_gpu import PipelineFrequencyOptimizer
from pfo_gpu.job import agreed_name

RANK = {
    "rank": 1,
    "dp_rank": 0,
    "pp_rank": 1,
    "tp_rank": 0,
    "device_id": 0,
    "dp_degree": 1,
    "pp_degree": 2,
    "tp_degree": 1,
    "world_size": 2,
}


def train(optimizer, steps):
    optimizer.on_train_begin()
    for _ in range(steps):
        optimizer.on_step_begin()
        for _ in range(2):
            optimizer.on_instruction_begin("forward")
            optimizer.on_instruction_end("forward")
            optimizer.on_instruction_begin("backward")
            optimizer.on_instruction_end("backward")
        optimizer.on_step_end()
    optimizer.on_train_end()


@pytest.fixture
def distributed(monkeypatch):
    """An initialized `torch.distributed`, of which this process is the rank that a test says."""
    distributed = types.ModuleType("torch.distributed")
    distributed.rank, distributed.broadcast = 0, []
    distributed.is_available = distributed.is_initialized = lambda: True
    distributed.get_rank = lambda: distributed.rank

    def broadcast_object_list(objects, src):
        assert src == 0
        if distributed.rank == src:
            distributed.broadcast = list(objects)
        objects[:] = distributed.broadcast

    distributed.broadcast_object_list = broadcast_object_list
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    return distributed


def test_microbatches_are_counted_for_each_instruction_within_a_step(recorder):
    optimizer = PipelineFrequencyOptimizer(**RANK)
    train(optimizer, steps=2)
    expected = []
    for step in range(2):
        expected.append(f"step {step}")
        for m in range(2):
            for name in ("forward", "backward"):
                expected += [f"{name} {m}", f"end of {name} {m}"]
        expected.append(f"end of step {step}")
    recorder.expect(*expected)


def test_it_runs_at_the_clocks_of_a_plan(node, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", node.gpus[2])
    optimizer = PipelineFrequencyOptimizer(**{**RANK, "rank": 0, "pp_rank": 0})
    assert optimizer.session.problem is None
    node.swap_in("job", stages=2, clocks_mhz=[600, 615, 630, 645])
    optimizer.on_step_begin()
    for _ in range(2):
        for name in ("forward", "backward"):
            optimizer.on_instruction_begin(name)
            optimizer.on_instruction_end(name)
    optimizer.on_step_end()
    node.until_clock(2, 600)
    clocks = node.clocks_set(2)
    assert clocks[-1] == 600 and set(clocks) <= {600, 615, 630, 645}, clocks


def test_a_server_is_not_talked_to_and_that_is_said_once(recorder, warnings):
    for rank in range(2):
        given = {**RANK, "rank": rank, "pp_rank": rank}
        PipelineFrequencyOptimizer(**given, server_url="http://server:7787", job_metadata="llama")
    assert len(warnings()) == 1 and "http://server:7787 is ignored" in warnings()[0]


def test_ranks_without_a_launchers_name_agree_on_one(recorder, monkeypatch, distributed):
    monkeypatch.delenv("PFO_JOB")
    first = PipelineFrequencyOptimizer(**{**RANK, "rank": 0, "pp_rank": 0}, job_metadata="llama 7b")
    distributed.rank = 1
    second = PipelineFrequencyOptimizer(**RANK)
    assert first.job_id == second.job_id
    assert first.job_id.startswith("llama-7b+")


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"PFO_JOB": "mine", "SLURM_JOB_ID": "7"}, "mine"),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "run"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "a run"}, "a-run"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({}, None),
    ],
)
def test_the_environment_names_the_job(monkeypatch, without_launcher, variables, name):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert agreed_name() == name


def test_a_run_that_torchrun_has_named_by_chance_gets_a_name_with_the_script_in_it(
    monkeypatch, without_launcher, warnings
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "119a44ff-676e-4a5b-8c1d-0123456789ab")
    monkeypatch.setattr(sys, "argv", ["/home/user/train gpt.py", "--lr", "1"])
    assert agreed_name() == agreed_name() == "train-gpt+119a44ff"
    assert agreed_name("llama") == "llama+119a44ff"
    assert "the job is called train-gpt+119a44ff" in warnings()[0] and "PFO_JOB" in warnings()[0]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", [])
    assert agreed_name() == "python+119a44ff" and len(warnings()) == 2


def test_degrees_that_do_not_make_the_world_are_an_error_that_names_them():
    with pytest.raises(ValueError, match="world_size 3 is not dp_degree 1 times pp_degree 2"):
        PipelineFrequencyOptimizer(**{**RANK, "world_size": 3})


def test_without_any_name_for_the_job_the_error_says_how_to_give_one():
    with pytest.raises(ValueError, match="PFO_JOB"):
        pfo_gpu.Session(gpu="GPU-1234")
