"""The playground's nvidia-smi, on simulated GPUs."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).parents[3] / "playground" / "pfo_gpu_playground" / "nvidia_smi.py"
A40_LIMIT_W = 300


@pytest.fixture
def nvidia_smi(node):
    library = node.directory / "libnvidia-ml.so.1"
    environment = {**os.environ, **node._environment}

    def run(*arguments):
        command = [sys.executable, str(PROGRAM), str(library), *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        return ran.returncode, ran.stdout.splitlines(), ran.stderr

    return run


def test_gpus_are_listed_by_index_name_and_uuid(nvidia_smi, node):
    expected = [f"GPU {index}: NVIDIA A40 (UUID: {uuid})" for index, uuid in enumerate(node.gpus)]
    assert nvidia_smi("-L") == (0, expected, "")


def test_a_query_has_units_unless_they_are_not_wanted(nvidia_smi):
    query = "--query-gpu=index,power.limit,clocks.max.sm"
    assert nvidia_smi(query, "--format=csv", "-i", "1")[1] == [
        "index, power.limit [W], clocks.max.sm [MHz]",
        f"1, {A40_LIMIT_W}.00 W, 1740 MHz",
    ]
    assert nvidia_smi(query, "--format=csv,noheader,nounits", "-i", "1")[1] == [f"1, {A40_LIMIT_W}.00, 1740"]


def test_a_gpu_is_chosen_by_its_uuid(nvidia_smi, node):
    assert nvidia_smi("-i", node.gpus[2], "--query-gpu=index", "--format=csv,noheader")[1] == ["2"]


def test_without_arguments_every_gpu_is_a_row(nvidia_smi):
    code, lines, _ = nvidia_smi()
    assert (code, len(lines)) == (0, 2 + 4)


def test_what_it_has_not_is_refused_by_name(nvidia_smi):
    code, _, complaint = nvidia_smi("--query-gpu=fan.speed", "--format=csv")
    assert code == 1 and "no field fan.speed; this small one has index, " in complaint
    code, _, complaint = nvidia_smi("-i", "9")
    assert (code, complaint) == (1, "nvidia-smi: no GPU 9; -L lists them\n")
