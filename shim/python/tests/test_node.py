"""The daemons, asked from Python: what they measured, and what a job is to run."""

import dataclasses
import json
import re
import socket
import threading

import pytest
from node import until
from one_stage import one_step, plan_file

import pfo_gpu
from pfo_gpu.node.energy import _compared
from pfo_gpu.node.status import DaemonStatus, JobStatus, PlanStatus, RankStatus, Status, Window


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


def test_a_job_is_tuned_with_progress_and_the_result_says_what_it_runs(node, training):
    seen = []
    quick = {"sweep_stride": 600, "sweep_steps": 2, "rounds": 2, "steps": 2}
    tuned = pfo_gpu.Node().tune("job", max_slowdown=0.5, progress=seen.append, **quick)
    assert seen[-1].is_over and not seen[0].is_over and {progress.job for progress in seen} == {"job"}
    assert tuned.report["job"] == "job" and tuned.report["max_slowdown"] == 0.5
    assert (tuned.kept is None) == (tuned.plan is None) == (tuned.saving is None) and repr(tuned) and tuned._repr_html_()
    (known,) = pfo_gpu.Node().tunes()
    assert known.is_over and known.state == seen[-1].state
    assert any("a sweep measures" in progress.now for progress in seen)
    assert pfo_gpu.Node().watch_tune("job").report == tuned.report and len({tuned, tuned}) == 1


def test_a_tune_is_watched_again_and_through_a_restart_of_the_agent(node, training):
    daemons, told = pfo_gpu.Node(patience_s=60), []

    def restart_and_stop(progress):
        told.append(progress)
        if len(told) == 2:
            node.kill_agent()
            node.start_agent()
        if len(told) == 4:
            daemons.stop_tune("job")

    def leave(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        daemons.tune("job", max_slowdown=0.5, progress=leave)
    with pytest.raises(pfo_gpu.NodeError, match="job job is being tuned"):
        daemons.tune("job", progress=leave)
    with pytest.raises(pfo_gpu.NodeError, match="the tune of job job goes on; `Node.watch_tune` waits for its end"):
        daemons.tuned("job")
    with pytest.raises(pfo_gpu.NodeError, match="the tune of job job was stopped"):
        daemons.watch_tune("job", progress=restart_and_stop)
    assert told[-1].is_over and len(told) >= 4


def test_a_tune_that_is_stopped_is_an_error_that_says_so(node, training):
    agent = pfo_gpu.Node()
    with pytest.raises(pfo_gpu.NodeError, match="the tune of job job was stopped"):
        agent.tune("job", progress=lambda progress: progress.is_over or agent.stop_tune("job"))


def test_a_job_that_is_not_there_cannot_be_tuned(node):
    with pytest.raises(pfo_gpu.NodeError, match="nobody"):
        pfo_gpu.Node().tune("nobody", progress=print)


def test_terms_that_are_none_are_refused_before_anything_is_measured(node, training):
    with pytest.raises(pfo_gpu.NodeError, match="roundz"):
        pfo_gpu.Node().tune("job", roundz=3)
    with pytest.raises(pfo_gpu.NodeError, match="not plain values"):
        pfo_gpu.Node().tune("job", rounds=object())


def test_a_notebook_shows_the_status_as_a_table(node, training):
    shown = pfo_gpu.Node().status()._repr_html_()
    assert "<td>job</td>" in shown and "default clocks" in shown and shown.count("<tr>") == 7


def test_there_is_no_profile_before_it_was_measured(node):
    daemons = pfo_gpu.Node()
    assert daemons.profiles() == []
    with pytest.raises(pfo_gpu.NodeError, match="profile"):
        daemons.profile("job")


def test_a_job_that_is_not_there_has_no_power_of_waiting(node):
    with pytest.raises(pfo_gpu.NodeError, match="^no job 'nojob' on this node; there are \\[\\]$"):
        pfo_gpu.Node().p2p_power("nojob")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda node: node.swap("a b", None), 'the job name "a b" contains \' \'; only letters, .* are allowed'),
        (lambda node: node.swap("job", None, at_step=-1), "at_step is -1; it must be a whole number from 0 to .*"),
        (lambda node: node.swap("job", None, uid=2**32), "uid is 4294967296; it must be .* to 4294967295"),
        (lambda node: node.sweep("job", steps=0), "the number of measured steps is 0; it must be 1 to 10000"),
        (lambda node: node.sweep("job", steps=-1), "steps is -1; it must be a whole number from 0 to 4294967295"),
        (lambda node: node.sweep("job", max_slowdown=float("nan")), "max_slowdown is nan; it must be a number.*"),
        (lambda node: node.guard("job", float("nan")), "max_slowdown is nan; .* from 0 on, such as 0.01 for 1 %"),
        (lambda node: node.guard("job", "1%"), "max_slowdown is '1%'; it must be a number.*"),
        (lambda node: node.guard("job", -0.01), "max_slowdown is -0.01; it must be a number from 0 on.*"),
        (lambda node: node.rollback(None), "job is None; it must be a text"),
        (lambda node: node.savings(by=None), "by is None; it must be one of job, user, .*"),
        (lambda node: node.savings(since=float("nan")), "since is nan; it must be a number from 0 on, such as .*"),
        (lambda node: node.sweep("job", steps="3"), "steps is '3'; it must be a whole number"),
        (lambda node: node.tune("job", max_slowdown=float("nan")), "max_slowdown is nan; it must be a number.*"),
        (lambda node: node.straggler("job", 0.9), "slowdown is 0.9; it must be a number from 1 on, such as 1.2"),
    ],
)
def test_an_argument_that_no_request_can_have_is_named_and_nothing_else(tmp_path, ask, said):
    with pytest.raises(pfo_gpu.NodeError) as refused:
        ask(pfo_gpu.Node(tmp_path / "none.sock"))
    assert re.fullmatch(said, str(refused.value))


@pytest.mark.parametrize("patience_s", [-1, float("nan"), float("inf"), 1e300])
def test_a_patience_that_is_no_time_is_refused_at_once(patience_s):
    with pytest.raises(ValueError, match=f"patience_s is {re.escape(str(patience_s))}; it must be"):
        pfo_gpu.Node(patience_s=patience_s)


def test_the_energy_of_an_unknown_job_is_one_warning_in_plain_words(node, warnings):
    with pfo_gpu.StepEnergy("nojob", every_s=0.1):
        until("a warning", warnings)
    assert warnings() == ["the energy of steps is not known: no job 'nojob' on this node; there are []"]


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


def rank(number=0, pid=1):
    return RankStatus(number, 0, pid, "GPU-1", 40, None, 0, None, 0, 0, None, 0, None)


def window(plan, steps, time_s, energy_j=None, ranks=1):
    return Window(plan, ranks, steps, time_s, energy_j)


def a_plan(number, suspended=None):
    return PlanStatus(number, "p", None, None, suspended)


def looked(*windows, ranks=(rank(),), pid=1, uptime_s=100.0):
    """What pfod says of the job at one look."""
    daemon = DaemonStatus("0", pid, uptime_s, None, None, 1, False)
    return Status(daemon, [], [JobStatus("job", 0, 1, None, None, None, None, list(windows), list(ranks))])


def test_a_name_that_several_users_gave_their_jobs_is_none_of_them():
    status = looked()
    status.jobs.append(dataclasses.replace(status.jobs[0], uid=1000))
    assert [status.job("job", uid).uid for uid in (0, 1000)] == [0, 1000]
    with pytest.raises(KeyError, match="users \\[0, 1000\\] have a job 'job'; name one of them with uid"):
        status.job("job")


class Scripted:
    """A node that says one thing after the other, and what was found in each of them."""

    def __init__(self, *looks):
        self._looks = [*looks, None]
        self._begun, self._over = threading.Event(), threading.Event()
        self._taken = []

    def status(self):
        assert self._begun.wait(timeout=60)
        self._taken.append(self._energy.latest)
        look = self._looks.pop(0)
        if not self._looks:
            self._over.set()
            raise pfo_gpu.NodeError("the script is over")
        return look

    def readings(self):
        """What each look found that was none before it."""
        with pfo_gpu.StepEnergy("job", self, every_s=0.1) as self._energy:
            self._begun.set()
            assert self._over.wait(timeout=60)
        return [new for old, new in zip(self._taken, self._taken[1:]) if new is not old]


def figures(readings):
    return [(reading.steps, reading.time_s, reading.energy_j) for reading in readings]


def about(*expected):
    return [(steps, pytest.approx(time_s), pytest.approx(energy_j)) for steps, time_s, energy_j in expected]


def test_steps_of_eight_seconds_looked_at_every_ten_take_eight_seconds():
    def at(now_s):
        whole = (now_s - 3) // 8
        return looked(window(None, whole, 8.0, 256.0)) if whole else looked()

    readings = Scripted(*(at(now_s) for now_s in range(5, 100, 10))).readings()
    assert figures(readings) == about(*[(steps, 8.0, 256.0) for steps in (1, 1, 2, 1, 1, 1, 2, 1, 1)])
    assert all(reading.power_w == pytest.approx(32.0) for reading in readings)


def test_steps_longer_than_a_look_are_logged_once_each():
    looks = [looked(window(None, 3, 25.0, 800.0))] * 3 + [looked(window(None, 4, 26.0, 810.0))] * 3
    assert figures(Scripted(*looks).readings()) == about((1, 29.0, 840.0))


def test_only_the_steps_since_the_last_look_count():
    readings = Scripted(looked(window(None, 10, 1.0, 50.0)), looked(window(None, 20, 1.5, 75.0))).readings()
    assert figures(readings) == about((10, 2.0, 100.0))
    assert (readings[0].step, readings[0].plan) == (40, None)


def test_a_plan_that_is_swapped_in_is_logged_from_its_own_first_step():
    before = window(None, 10, 1.0, 50.0)
    first, second = window(a_plan(1), 3, 1.1, 40.0), window(a_plan(1), 5, 1.2, 44.0)
    after = window(None, 12, 3.0, 90.0)
    default = window(None, 11, 1.0, 50.0)
    readings = Scripted(
        looked(before), looked(default, first), looked(default, second), looked(default, second, after)
    ).readings()
    assert figures(readings) == about((3, 1.1, 40.0), (2, 1.35, 50.0), (12, 3.0, 90.0))
    assert [reading.plan for reading in readings] == [1, 1, None]
    assert readings[0].saving == pytest.approx(0.2) and readings[0].slowdown == pytest.approx(0.1)


def test_a_suspended_plan_is_none():
    looks = [looked(window(a_plan(1, "it did not fit"), steps, 1.0, 5.0)) for steps in (1, 2)]
    (reading,) = Scripted(*looks).readings()
    assert (reading.plan, reading.saving) == (None, None)


def test_what_cannot_be_told_from_what_was_measured_before_is_not_logged():
    before = looked(window(None, 10, 1.0, 50.0))
    more = window(None, 20, 1.5, 75.0)
    of_two = [rank(0), rank(1)]
    for now in (
        looked(more, pid=2),
        looked(more, uptime_s=1.0),
        looked(more, ranks=[rank(pid=2)]),
        looked(window(None, 20, 1.5, 75.0, ranks=2)),
        looked(window(None, 2, 1.0, 50.0)),
        looked(window(None, 11, 0.5, 50.0)),
        looked(),
    ):
        assert Scripted(before, now).readings() == []
    again = [looked(window(None, steps, 2.0, 7.0), pid=2) for steps in (12, 14)]
    assert figures(Scripted(before, *again).readings()) == about((2, 2.0, 7.0)), "after a restart of pfod"
    both = [looked(window(None, steps, 2.0, 7.0, ranks=2), ranks=of_two) for steps in (12, 14)]
    assert figures(Scripted(before, *both).readings()) == about((2, 2.0, 7.0)), "after a rank has joined"


def test_without_an_energy_counter_the_time_is_logged():
    looks = looked(window(None, 1, 1.0)), looked(window(None, 2, 1.0)), looked(window(None, 3, 1.0, 5.0))
    readings = Scripted(*looks).readings()
    assert [(reading.time_s, reading.energy_j, reading.power_w) for reading in readings] == [(1.0, None, None)] * 2
    assert "pfo/step_energy_j" not in readings[0].metrics()


def test_a_saving_compares_the_plan_with_the_last_window_at_default_clocks():
    windows = [window(None, 5, 1.0, 50.0), window(None, 5, 1.0, 100.0), window(a_plan(2), 5, 1.01, 80.0)]
    saving, slowdown = _compared(windows, 2)
    assert saving == pytest.approx(0.2) and slowdown == pytest.approx(0.01)
    assert _compared(windows, None) == (None, None)
    assert _compared(windows[2:], 2) == (None, None)
