"""The daemons, asked from Python: what they measured, and what a job is to run."""

import json
import socket
import threading

import pytest
from node import until

import pfo_gpu
from pfo_gpu.node import StepReading
from pfo_gpu.node.energy import _between, _compared
from pfo_gpu.node.status import JobStatus, PlanStatus, RankStatus, Window


def one_step(session):
    with session.step():
        for m in range(2):
            with session.instruction("forward", m):
                pass
            with session.instruction("backward", m):
                pass


def plan_file(node, mhz, instructions=("forward", "backward")):
    """The file of a plan for one stage that runs these in turns."""
    rows = [
        {"instruction": name, "microbatch": m, "frequency_mhz": mhz} for m in range(2) for name in instructions
    ]
    plan = {
        "format": "pfo-plan/1",
        "gpu": "A40",
        "schedule": "1f1b",
        "num_stages": 1,
        "num_microbatches": 2,
        "p2p_blocking_power_w": 70,
        "stages": [{"stage": 0, "instructions": rows}],
    }
    file = node.directory / "plan.json"
    file.write_text(json.dumps(plan))
    return file


def test_the_status_is_what_pfoctl_prints(node):
    with pfo_gpu.Session() as session:
        one_step(session)
        daemons = pfo_gpu.Node()
        until("the step is known", lambda: daemons.status().job("job").ranks[0].step == 0)
        status, printed = daemons.status(), node.pfoctl("status")
        assert [gpu.uuid for gpu in status.gpus] == [gpu["uuid"] for gpu in printed["gpus"]]
        assert status.daemon.pid == printed["daemon"]["pid"] == node.daemon.pid
        (rank,) = status.job("job").ranks
        assert (rank.rank, rank.gpu_uuid) == (0, session.gpu)
        assert rank.untimed_calls == session.counters.untimed == 0, "there is no CUDA here to time calls with"
        with pytest.raises(KeyError, match="no job 'other' on this node; there are \\['job'\\]"):
            status.job("other")


def test_a_swap_changes_the_clocks_of_the_job(node):
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        swapped = pfo_gpu.Node().swap("job", plan_file(node, 1005))
        assert swapped.plan.label == "plan.json" and swapped.ranks == 1
        while pfo_gpu.Node().status().job("job").ranks[0].plan != 1:
            one_step(session)
        one_step(session)
        node.until_clock(0, 1005)
        assert pfo_gpu.Node().swap("job", None).plan is None


def test_a_plan_that_does_not_fit_is_refused_with_the_difference(node):
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        until("the step is over", lambda: pfo_gpu.Node().status().job("job").ranks[0].step == 0)
        with pytest.raises(pfo_gpu.NodeError, match="MHz"):
            pfo_gpu.Node().swap("job", plan_file(node, 1))
    with pytest.raises(pfo_gpu.NodeError, match="job"):
        pfo_gpu.Node().swap("nobody", plan_file(node, 1005))


def test_a_plan_of_the_planner_is_swapped_without_a_file(node):
    plan = pfo_gpu.Plan.read(plan_file(node, 1005))
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        assert pfo_gpu.Node().swap("job", plan, label="mine").plan.label == "mine"


def test_there_is_no_profile_before_it_was_measured(node):
    daemons = pfo_gpu.Node()
    assert daemons.profiles() == []
    with pytest.raises(pfo_gpu.NodeError, match="profile"):
        daemons.profile("job")


def test_a_daemon_that_is_missing_is_named_with_the_remedy(tmp_path):
    daemons = pfo_gpu.Node(tmp_path / "none.sock")
    with pytest.raises(pfo_gpu.NodeError, match="none.sock: No such file or directory; is pfod installed"):
        daemons.status()
    with pytest.raises(pfo_gpu.NodeError, match="pfo-agent.sock: .*; is pfo-agent installed"):
        daemons.profiles()


def test_a_daemon_that_says_nothing_is_not_waited_for(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "mute.sock"))
        listener.listen()
        daemons = pfo_gpu.Node(tmp_path / "mute.sock", patience_s=0.05)
        with pytest.raises(pfo_gpu.NodeError, match="has not answered within 0.05 s"):
            daemons.status()


def test_an_answer_that_is_none_is_an_error(tmp_path):
    for answer in (b"", b"\0" * 8, b"\xff" * 64, b"\4\0\0\0\1\0\x89\0\xff\xff\xff\xff"):
        path = tmp_path / f"{len(answer)}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            threading.Thread(target=_answer, args=(listener, answer), daemon=True).start()
            with pytest.raises(pfo_gpu.NodeError):
                pfo_gpu.Node(path).status()


def _answer(listener, answer):
    connection, _ = listener.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(answer)


class Writer:
    """What `add_scalar` of a `SummaryWriter` takes."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.scalars.append((tag, scalar_value, global_step))


class Mlflow:
    """What `mlflow.log_metrics` takes."""

    def __init__(self):
        self.logged = []

    def log_metrics(self, metrics, step=None, synchronous=None):
        self.logged.append((metrics, step))


class Wandb:
    """What a run's `log` takes."""

    def __init__(self):
        self.logged = []

    def log(self, data, step=None, commit=None):
        self.logged.append((data, step))


def test_every_tracker_gets_the_energy_of_a_step_once(node):
    trackers = Writer(), Mlflow(), Wandb()
    with pfo_gpu.Session() as session, pfo_gpu.StepEnergy(session, every_s=0.1) as energy:
        assert not energy.log_to(trackers[0], 0)
        while energy.latest is None:
            one_step(session)
        energy.close()
        reading = energy.latest
        assert [energy.log_to(tracker, 7) for tracker in trackers] == [True] * 3
        assert not any(energy.log_to(tracker, 8) for tracker in trackers)
    figures = reading.metrics()
    assert figures["pfo/step_time_s"] > 0 and figures["pfo/step_energy_j"] >= 0 and figures["pfo/plan"] == 0
    assert trackers[0].scalars == [(name, figure, 7) for name, figure in figures.items()]
    assert trackers[1].logged == trackers[2].logged == [(figures, 7)]


def test_a_tracker_that_fails_does_not_stop_the_trainer(node, warnings):
    def failing(metrics, step):
        raise OSError("the tracker is full")

    with pfo_gpu.Session() as session, pfo_gpu.StepEnergy(session, every_s=0.1) as energy:
        while energy.latest is None:
            one_step(session)
        assert not energy.log_to(failing, 0)
    assert "the energy of a step is not logged: the tracker is full" in warnings()


def test_without_a_daemon_one_warning_says_that_no_energy_is_known(tmp_path, warnings):
    daemons = pfo_gpu.Node(tmp_path / "none.sock")
    with pfo_gpu.StepEnergy("job", daemons, every_s=0.1) as energy:
        until("a warning", warnings)
        assert energy.latest is None
    (warning,) = warnings()
    assert "the energy of steps is not known: pfod on" in warning


def rank(step, energy_j, pid=1):
    return RankStatus(0, 0, pid, "GPU-1", step, None, 0, None, 0, 0, energy_j, 0, None)


def job(*ranks, windows=(), plan=None):
    return JobStatus("job", 0, 1, plan, None, None, None, list(windows), list(ranks))


def window(plan, time_s, energy_j):
    return Window(plan, 1, 5, time_s, energy_j)


def test_the_energy_of_a_step_is_that_of_all_gpus_over_the_steps_between():
    before, after = job(rank(10, 100.0), rank(10, 50.0)), job(rank(20, 300.0), rank(20, 150.0))
    reading = _between((5.0, before), (7.0, after))
    assert reading == StepReading(20, 10, 0.2, 30.0, None, None, None)
    assert reading.power_w == pytest.approx(150.0)
    assert _between((5.0, before), (7.0, before)) is None
    assert _between((5.0, before), (7.0, job(rank(20, 1.0, pid=2), rank(20, 1.0)))) is None
    unknown = _between((5.0, before), (7.0, job(rank(20, None), rank(20, 150.0))))
    assert unknown.energy_j is None and "pfo/step_energy_j" not in unknown.metrics()


def test_a_saving_compares_the_plan_with_the_last_window_at_default_clocks():
    plan = PlanStatus(2, "p", None, None, None)
    windows = [window(None, 1.0, 50.0), window(None, 1.0, 100.0), window(plan, 1.01, 80.0)]
    saving, slowdown = _compared(windows, 2)
    assert saving == pytest.approx(0.2) and slowdown == pytest.approx(0.01)
    assert _compared(windows, None) == (None, None)
    assert _compared(windows[2:], 2) == (None, None)
