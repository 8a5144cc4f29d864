"""The energy of a step in the trackers themselves, as they are on PyPI: what they keep is read back from them."""

import json

import pytest
from node import until

import pfo_gpu
from pfo_gpu.node import StepReading

READING = StepReading(
    step=40, steps=10, time_s=1.5, energy_j=820.0, plan=3, saving=0.12, slowdown=0.01
)
STEP = 7


@pytest.fixture
def energy(tmp_path):
    """What has read the energy of a step, and asks nobody."""
    with pfo_gpu.StepEnergy("job", pfo_gpu.Node(tmp_path / "none.sock"), every_s=3600) as energy:
        energy._take(READING)
        yield energy


def test_tensorboard_keeps_every_figure(energy, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        assert energy.log_to(writer, STEP) and not energy.log_to(writer, STEP + 1)
    kept = EventAccumulator(str(tmp_path))
    kept.Reload()
    figures = {name: [(event.step, event.value) for event in kept.Scalars(name)] for name in kept.Tags()["scalars"]}
    assert figures == {name: [(STEP, pytest.approx(figure))] for name, figure in READING.metrics().items()}


def test_mlflow_keeps_every_figure(energy, tmp_path, monkeypatch):
    # Newer releases ask for a database instead.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    with mlflow.start_run() as run:
        assert energy.log_to(mlflow, STEP) and not energy.log_to(mlflow, STEP + 1)
    client = mlflow.MlflowClient()
    kept = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in client.get_run(run.info.run_id).data.metrics
    }
    assert kept == {name: [(STEP, figure)] for name, figure in READING.metrics().items()}


def test_weights_and_biases_keeps_every_figure(energy, tmp_path):
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(console="off", silent=True)
    with wandb.init(mode="offline", project="pfo", dir=str(tmp_path), settings=settings) as run:
        assert energy.log_to(run, STEP) and not energy.log_to(run, STEP + 1)
    # A log of records, in which text is as it is. A process of its own writes it, on a busy machine after the run.
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for name, figure in READING.metrics().items():
        for text in (name, json.dumps(figure).removesuffix(".0")):
            until(f"{text} is kept", lambda text=text: text.encode() in file.read_bytes())
