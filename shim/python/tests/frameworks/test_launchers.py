"""Which rank, job and GPU a session takes when the usual programs start a trainer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PATIENCE_S

TRAINER = Path(__file__).parent / "spawned_training.py"
RANKS = 4


@pytest.fixture
def run(node, monkeypatch, tmp_path):
    """Runs the trainer, and returns what its ranks' sessions say and what was logged."""
    monkeypatch.delenv("PFO_GPU")

    def run(command, how, devices, **variables):
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
        for name in [name for name, value in variables.items() if value is None]:
            del environment[name]
        finished = subprocess.run(
            [sys.executable, *command, TRAINER, how, tmp_path, devices],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert finished.returncode == 0, finished.stderr
        told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
        assert [of_rank["rank"] for of_rank in told] == list(range(RANKS))
        assert {of_rank["calls"] for of_rank in told} == {2 + 2 * 4}
        return told, finished.stderr

    return run


# As in a batch script of Slurm, whose variables all ranks inherit.
BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize("variables", [{}, BATCH], ids=["alone", "in a batch script"])
def test_spawned_ranks_get_the_gpus_of_their_stages(run, node, variables):
    told, _ = run([], "spawn", "gpus", **variables)
    assert [of_rank["gpu"] for of_rank in told] == node.cuda_gpus


def test_spawned_ranks_of_which_nothing_says_the_gpu_get_none_and_train(run):
    told, logged = run([], "spawn", "cpu")
    assert [of_rank["problem"] for of_rank in told] == [156] * RANKS
    for rank in range(RANKS):
        assert logged.count(f"nothing says which of 4 GPUs rank {rank} drives") == 1


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]


def test_torchruns_ranks_get_the_gpus_of_their_local_ranks_and_the_jobs_name(run, node):
    told, logged = run([*TORCHRUN, "--standalone"], "torchrun", "cpu")
    assert [of_rank["gpu"] for of_rank in told] == node.cuda_gpus
    assert {of_rank["job"] for of_rank in told} == {"job"}
    assert "is called" not in logged


@pytest.mark.parametrize("options", [["--standalone"], ["--rdzv-id", "mine"]])
def test_on_one_node_torchrun_replaces_the_jobs_name_and_one_warning_says_so(run, options):
    told, logged = run([*TORCHRUN, *options], "torchrun", "cpu", PFO_JOB=None)
    (name,) = {of_rank["job"] for of_rank in told}
    assert re.fullmatch(r"spawned_training\+[0-9a-f]{8}", name)
    assert logged.count(f"the job is called {name}") == 1


def test_with_an_endpoint_torchrun_keeps_the_name(run):
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "mine"]
    told, _ = run([*TORCHRUN, *rendezvous], "torchrun", "cpu", PFO_JOB=None)
    assert {of_rank["job"] for of_rank in told} == {"mine"}
