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


def test_a_lost_gpu_is_said_to_be_lost_and_the_others_are_listed(nvidia_smi, node):
    node.run("pfo-sim", "fault", "--function", "*", "--kind", "gpu-is-lost", "--gpu", "1")
    expected = [f"GPU {index}: NVIDIA A40 (UUID: {uuid})" for index, uuid in enumerate(node.gpus)]
    expected[1] = "GPU 1: [GPU is lost] (UUID: [GPU is lost])"
    assert nvidia_smi("-L") == (15, expected, "")


def test_cells_of_a_lost_gpu_have_no_unit_and_the_table_says_err(nvidia_smi, node):
    node.run("pfo-sim", "fault", "--function", "*", "--kind", "gpu-is-lost", "--gpu", "1")
    query = ("--query-gpu=index,power.limit", "--format=csv,noheader", "-i")
    assert nvidia_smi(*query, "0,1") == (15, [f"0, {A40_LIMIT_W}.00 W", "1, [GPU is lost]"], "")
    assert nvidia_smi(*query, "0")[0] == 0, "the lost GPU is not among them"
    code, lines, _ = nvidia_smi()
    assert (code, lines[3]) == (15, "1" + 6 * ", ERR!")


def test_gpus_of_which_nvml_has_no_handle_are_lost_too(nvidia_smi, node):
    node.run("pfo-sim", "fault", "--function", "nvmlDeviceGetHandleByIndex_v2", "--kind", "gpu-is-lost")
    cells = [f"{index}, 4, [GPU is lost]" for index in range(4)]
    assert nvidia_smi("--query-gpu=index,count,uuid", "--format=csv,noheader") == (15, cells, "")
