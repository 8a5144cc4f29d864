"""What the tests share: a simulated node with daemons of its own."""

import logging
import threading

import pytest

import pfo_gpu.instruction

# Their assertions say what differs, as those of tests do.
pytest.register_assert_rewrite("node", "one_stage", "recorder", "ranks")

from node import Node  # noqa: E402
from recorder import Recorder  # noqa: E402


@pytest.fixture
def node(tmp_path, monkeypatch, without_launcher):
    """A node whose daemons serve, which are those that sessions of this process find."""
    node = Node(tmp_path)
    monkeypatch.setenv("PFO_SOCKET", str(node.socket))
    monkeypatch.setenv("PFO_DEVICES", str(node.devices))
    monkeypatch.setenv("PFO_JOB", "job")
    monkeypatch.setenv("PFO_GPU", node.gpus[0])
    node.start_daemon()
    node.start_agent()
    yield node
    node.kill_agent()
    node.kill_daemon()


@pytest.fixture
def warnings(caplog):
    """What pfo has logged."""
    caplog.set_level(logging.WARNING, "pfo_gpu")
    pfo_gpu.instruction._reported.clear()
    return lambda: [record.getMessage() for record in caplog.records if record.name == "pfo_gpu"]


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch):
    """No variable of whoever runs the tests reaches them."""
    for name in (
        "PFO_DEVICES PFO_GPU PFO_JOB PFO_SOCKET RANK LOCAL_RANK SLURM_JOB_ID SLURM_PROCID SLURM_LOCALID "
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK PMI_LOCAL_RANK MPI_LOCALRANKID PMIX_RANK "
        "TORCHELASTIC_RUN_ID CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES"
    ).split():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recorder(tmp_path, monkeypatch, without_launcher):
    """A daemon that writes down what sessions of this process tell it."""
    recorder = Recorder(tmp_path / "recorder.sock")
    monkeypatch.setenv("PFO_SOCKET", str(recorder.path))
    monkeypatch.setenv("PFO_JOB", "job")
    monkeypatch.setenv("PFO_GPU", "GPU-1234")
    return recorder


@pytest.fixture
def training(node):
    """A job of one stage that trains until the test is over."""
    over = threading.Event()
    with pfo_gpu.Session(setup_timeout_s=60, num_microbatches=2) as session:

        def train():
            while not over.is_set():
                with session.step():
                    for m in range(2):
                        for name in ("forward", "backward"):
                            with session.instruction(name, m):
                                over.wait(0.02)

        thread = threading.Thread(target=train)
        thread.start()
        yield session
        over.set()
        thread.join()
