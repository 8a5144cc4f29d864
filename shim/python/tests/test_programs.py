"""`python -m pfo_gpu doctor`, `python -m pfo_gpu.p2p` and `python -m pfo_gpu.load`, run as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from node import until

PRETENDED = Path(__file__).parent / "pretended"


def run(*arguments, **variables):
    """What a program says, and how it ends."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def start_waiting(node, **variables):
    return start("pfo_gpu.p2p", ",".join(node.gpus[1:3]), **variables)


def start(program, gpus, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", program, "--gpus", gpus, "--job", "measure"],
        env={**os.environ, "PYTHONPATH": str(PRETENDED), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_doctor_says_which_gpu_a_trainer_would_lease(node):
    told = run("pfo_gpu", "doctor")
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"lease:   granted, of {node.gpus[0]}" in told.stdout
    assert f"socket:  {node.socket}, which" in told.stdout
    assert f"GPU:     PFO_GPU={node.gpus[0]}" in told.stdout
    assert "PyTorch: not there" in told.stdout
    until("the lease is given back", lambda: not node.ranks("doctor"))


def test_the_doctor_asks_a_pytorch_that_is_there(node):
    told = run("pfo_gpu", "doctor", PYTHONPATH=str(PRETENDED), CUDA_VISIBLE_DEVICES="0,1")
    assert "PyTorch: pretended with CUDA, which sees 2 GPUs" in told.stdout


@pytest.mark.parametrize("name", ["torch.py", "torch/training.py"])
def test_a_module_of_that_name_which_is_not_pytorch_is_left_alone(node, tmp_path, name):
    (tmp_path / "mine" / name).parent.mkdir(parents=True)
    (tmp_path / "mine" / name).touch()
    beside = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "mine"), os.environ.get("PYTHONPATH", "")])}
    told = run("pfo_gpu", "doctor", **beside)
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"PyTorch: not there: {tmp_path / 'mine' / 'torch'}" in told.stdout
    opens = "import torch, pfo_gpu; print(pfo_gpu.Session(gpu='cuda:0', sync='device').step_begin())"
    trained = subprocess.run(
        [sys.executable, "-c", opens], env={**os.environ, **beside}, capture_output=True, text=True
    )
    assert (trained.stdout, trained.stderr) == ("None\n", "")
    loaded = run("pfo_gpu.load", "--gpus", node.gpus[1], "--job", "load", **beside)
    assert loaded.returncode == 1 and "is not PyTorch" in loaded.stderr + loaded.stdout


def test_the_doctor_names_what_is_missing(node, tmp_path):
    node.kill_daemon()
    told = run("pfo_gpu", "doctor", PFO_SOCKET=str(tmp_path / "none"))
    assert told.returncode == 1 and told.stderr == ""
    assert "No such file or directory; is pfod installed" in told.stdout
    assert "lease:   NONE, so training would run at default clocks: no daemon" in told.stdout
    told = run("pfo_gpu", "doctor", PFO_GPU="MIG-1")
    assert told.returncode == 1 and "MIG instance" in told.stdout


def test_two_gpus_wait_in_steps_without_instructions_until_standard_input_ends(node):
    waiting = start_waiting(node)
    assert waiting.stdout.readline() == "both GPUs wait until standard input ends\n"
    ranks = until("both ranks have begun a second step", lambda: steps_of(node, 2))
    assert [rank["gpu_uuid"] for rank in ranks] == node.gpus[1:3]
    assert [rank["instructions"] for rank in ranks] == [0, 0]
    out, error = waiting.communicate()
    assert (waiting.returncode, out, error) == (0, "", "")
    until("the leases are given back", lambda: not node.ranks("measure"))


def steps_of(node, step):
    ranks = node.ranks("measure")
    return ranks if len(ranks) == 2 and all(rank["step"] >= step for rank in ranks) else None


def test_its_processes_end_when_it_is_killed(node):
    waiting = start_waiting(node)
    waiting.stdout.readline()
    waiting.kill()
    waiting.communicate()
    until("the leases are given back", lambda: not node.ranks("measure"))


def test_pfoctl_measures_what_its_gpus_draw(node):
    measured = node.run(
        *["pfoctl", "p2p", "measure", "--json", "--socket", str(node.socket)],
        *["--gpus", ",".join(node.gpus[1:3]), "--clocks", "1740", "--steps", "1"],
        *["--helper", f"{sys.executable} -m pfo_gpu.p2p"],
        PYTHONPATH=str(PRETENDED),
        PFO_SOCKET=str(node.socket),
    )
    powers = json.loads(measured)
    assert sorted(power["gpu_uuid"] for power in powers) == sorted(node.gpus[1:3])
    # Nothing computes on them: the transfers are pretended.
    assert [power["power_w"] for power in powers] == pytest.approx([32.0, 32.0], rel=0.1)


def test_a_refused_lease_ends_it_with_the_reason(node):
    node.kill_daemon()
    waiting = start_waiting(node)
    _, error = waiting.communicate()
    assert waiting.returncode == 1 and "pfo_gpu.p2p: on GPU-" in error and "no daemon" in error


def test_a_pytorch_without_nccl_is_named(node):
    waiting = start_waiting(node, PRETENDED_NCCL="0")
    _, error = waiting.communicate()
    assert waiting.returncode == 1 and "PyTorch pretended has no NCCL" in error


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("GPU-1,GPU-2", "has no PyTorch; install it"),
        ("0,1", "is not two UUIDs; `pfoctl gpus` lists them"),
        ("GPU-1,GPU-1", "is not two UUIDs"),
        ("GPU-1", "is not two UUIDs"),
    ],
)
def test_what_it_cannot_measure_on_is_said_clearly(gpus, said):
    told = run("pfo_gpu.p2p", "--gpus", gpus, "--job", "measure")
    assert told.returncode == 1 and said in told.stderr and "Traceback" not in told.stderr


def test_a_gpu_works_in_steps_until_standard_input_ends(node):
    working = start("pfo_gpu.load", node.gpus[1])
    (rank,) = until("its rank has run a step", lambda: begun(node))
    assert (rank["gpu_uuid"], rank["lost_events"]) == (node.gpus[1], 0)
    out, error = working.communicate()
    assert (working.returncode, out, error) == (0, "", "")
    until("the lease is given back", lambda: not node.ranks("measure"))


def begun(node):
    return [rank for rank in node.ranks("measure") if (rank["step"] or 0) > 1]


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("GPU-1", "has no PyTorch; install it"), ("0", "is not one UUID"), ("GPU-1,GPU-2", "is not one UUID")],
)
def test_what_it_cannot_work_on_is_said_clearly(gpu, said):
    told = run("pfo_gpu.load", "--gpus", gpu, "--job", "measure")
    assert told.returncode == 1 and said in told.stderr and "Traceback" not in told.stderr


def observe(place, *arguments, **variables):
    return run("pfo_gpu", "observe", *arguments, PATH="/usr/bin:/bin", PFO_BIN_DIR=str(place), **variables)


def test_observe_without_the_programs_says_what_to_put_where(tmp_path):
    told = observe(tmp_path, "--", "true")
    assert told.returncode == 1 and told.stdout == ""
    assert "pfoctl, pfod and pfo-agent" in told.stderr and "PFO_BIN_DIR" in told.stderr


def test_observe_becomes_the_pfoctl_of_the_named_folder_with_its_arguments_and_exit_code(tmp_path):
    for name in ["pfoctl", "pfod", "pfo-agent"]:
        (tmp_path / name).write_text('#!/bin/sh\necho "$@"\nexit 7\n')
        (tmp_path / name).chmod(0o755)
    told = observe(tmp_path, "--report", "page.html", "--", "torchrun", "train.py", "--lr", "0.1")
    assert (told.returncode, told.stderr) == (7, "")
    assert told.stdout.split() == "observe --report page.html -- torchrun train.py --lr 0.1".split()
