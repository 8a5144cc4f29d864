"""Threads that use sessions at once, with and without a lock of the interpreter."""

import subprocess
import sys
import sysconfig
import threading

import pytest
from node import PATIENCE_S, until
from test_planner import P2P_POWER_W, csv

import pfo_gpu

THREADS = 8
ROUNDS = 200


@pytest.fixture(autouse=True)
def frequent_switches():
    """Where there is a lock of the interpreter, threads take turns wherever they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work, threads=THREADS):
    """Runs work in threads that begin together, and raises what any of them raised; what each returned."""
    together = threading.Barrier(threads)
    returned, raised = {}, []

    def run(number):
        together.wait()
        try:
            returned[number] = work(number)
        except BaseException as error:
            raised.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    for error in raised:
        raise error
    return [returned[number] for number in range(threads)]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a GIL")
def test_the_package_leaves_the_gil_disabled():
    looked = "import sys, pfo_gpu, pfo_gpu.planner, pfo_gpu.node; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", looked], check=True)


def test_every_call_of_many_threads_is_sent_or_dropped(recorder, warnings):
    session = pfo_gpu.Session(sync="cpu")

    def begin_only(_number):
        for microbatch in range(ROUNDS):
            session.step_begin()
            session.instruction_begin("forward", microbatch)

    at_once(begin_only)
    counters = session.counters
    assert counters.sent + counters.dropped == 2 * THREADS * ROUNDS
    until("the daemon has what was sent", lambda: len(recorder.marks()) == counters.sent)
    steps = [int(mark[len("step ") :]) for mark in recorder.marks() if mark.startswith("step ")]
    assert steps == sorted(set(steps)) and steps[-1] < THREADS * ROUNDS
    assert recorder.times_ns() == sorted(recorder.times_ns())
    assert len(warnings()) <= 1


def test_steps_and_instructions_of_many_threads_are_at_most_one_warning(recorder, warnings):
    session = pfo_gpu.Session(sync="cpu")

    @session.instruction("backward")
    def backward():
        return session.counters, session.timing, session.problem, session.gpu

    def train(_number):
        for microbatch in range(ROUNDS):
            with session.step():
                with session.instruction("forward", microbatch):
                    pass
                backward()

    at_once(train)
    assert session.problem is None and session.gpu == "GPU-1234"
    assert all("an instruction began" in warning for warning in warnings()) and len(warnings()) <= 1


def test_a_wrong_name_is_reported_once_by_all_threads(recorder, warnings):
    session = pfo_gpu.Session(sync="cpu")
    session.step_begin()

    def make_up(_number):
        for name in range(10):
            session.instruction_begin(f"made up {name}")
            session.instruction_end(at_ns="now")

    at_once(make_up)
    told = [warning for warning in warnings() if "an instruction began" not in warning]
    assert len(told) == len(set(told)) == 10 + 1


def test_a_trainer_that_makes_up_names_does_not_fill_its_log(recorder, warnings):
    session = pfo_gpu.Session(sync="cpu")
    session.step_begin()

    def make_up(number):
        session.instruction_begin("forward", at_ns="now")
        for name in range(ROUNDS):
            session.instruction_begin(f"made up {number} {name}")

    at_once(make_up)
    told = [warning for warning in warnings() if "is no instruction" in warning]
    # Threads that are the twentieth at once all are.
    assert 1 <= len(told) <= pfo_gpu.instruction._MOST_REPORTS + THREADS


def test_a_session_is_closed_while_other_threads_report(recorder):
    for connection in range(20):
        session = pfo_gpu.Session(sync="cpu")
        reported = threading.Event()

        def report(number):
            if number == 0:
                reported.wait(PATIENCE_S)
                return session.close()
            for _ in range(ROUNDS):
                with session.step(), session.instruction("forward"):
                    reported.set()
                    repr(session)

        at_once(report)
        assert session.closed and session.timing == "closed"
        until("it says goodbye", lambda: recorder.marks(connection)[-1:] == ["goodbye"])
        assert recorder.marks(connection).count("goodbye") == 1


def test_many_threads_close_one_session(recorder):
    session = pfo_gpu.Session(sync="cpu")
    at_once(lambda _number: session.close())
    recorder.expect("goodbye")


def test_threads_with_sessions_of_their_own_do_not_disturb_each_other(recorder, warnings):
    others = []

    def train(rank):
        calls = 0
        with pfo_gpu.Session(rank=rank, sync="cpu", setup_timeout_s=PATIENCE_S) as session:
            others.append(session)
            for microbatch in range(ROUNDS):
                with session.step(), session.instruction("forward", microbatch):
                    calls += 4
                repr(others[microbatch % len(others)])
            return calls, session.counters.sent + session.counters.dropped, session.counters.misplaced

    for calls, told, misplaced in at_once(train):
        assert (told, misplaced) == (calls, 0)
    assert len(recorder.said) == THREADS
    assert not warnings()


def test_pfod_takes_the_ranks_of_a_job_that_are_threads_of_one_process(node):
    opened = at_once(
        lambda rank: pfo_gpu.Session(
            rank=rank, pp_rank=rank, pp_degree=4, gpu=node.gpus[rank], sync="cpu", setup_timeout_s=PATIENCE_S
        ),
        threads=4,
    )
    assert [session.gpu for session in opened] == node.gpus
    assert sorted(rank["rank"] for rank in node.ranks()) == [0, 1, 2, 3]

    def train(rank):
        for microbatch in range(ROUNDS):
            with opened[rank].step(), opened[rank].instruction("forward", microbatch):
                pass
        return opened[rank].counters

    for counters in at_once(train, threads=4):
        assert counters.sent + counters.dropped == 4 * ROUNDS and counters.connected
    at_once(lambda rank: opened[rank].close(), threads=4)
    until("the daemon has heard of it", lambda: not node.ranks())


def test_of_threads_that_open_one_rank_at_most_one_has_its_gpu(node):
    opened = at_once(lambda _number: pfo_gpu.Session(sync="cpu", setup_timeout_s=PATIENCE_S))
    until("one has it", lambda: any(session.gpu for session in opened))
    assert sum(session.gpu is not None for session in opened) == 1
    for session in opened:
        session.close()


def test_threads_plan_at_the_same_time():
    profile = csv().encode()
    made = at_once(
        lambda _number: pfo_gpu.plan(profile, microbatches=4, p2p_power=P2P_POWER_W, plans=20), threads=4
    )
    assert len({frontier.at("1.02x").to_text() for frontier in made}) == 1
