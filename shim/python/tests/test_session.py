"""What a session tells the daemon, and what it never does to its trainer."""

import copy
import functools
import html
import multiprocessing
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from node import PATIENCE_S, until

import pfo_gpu
from pfo_gpu import watch


def one_step(session, microbatches=2):
    with session.step():
        for m in range(microbatches):
            with session.instruction("forward", microbatch=m):
                pass


def test_blocks_say_when_steps_and_instructions_begin_and_end(recorder):
    with pfo_gpu.Session() as session:
        with session.step():
            with session.instruction("forward", microbatch=3):
                pass
            with session.instruction("backward", microbatch=1, chunk=2):
                pass
    recorder.expect(
        "step 0",
        "forward 3",
        "end of forward 3",
        "backward 1 of chunk 2",
        "end of backward 1 of chunk 2",
        "end of step 0",
        "goodbye",
    )


def test_decorators_say_it_around_every_call_and_count_microbatches(recorder):
    session = pfo_gpu.Session(first_step=7)

    @session.instruction("backward_input")
    def work(x):
        return x + 1

    @session.step()
    def step():
        return [work(1), work(2)]

    assert step() == [2, 3]
    recorder.expect(
        "step 7",
        "backward_input 0",
        "end of backward_input 0",
        "backward_input 1",
        "end of backward_input 1",
        "end of step 7",
    )


def test_an_exception_in_a_block_ends_it_and_goes_on(recorder):
    session = pfo_gpu.Session()
    with pytest.raises(KeyError), session.step(), session.instruction("load"):
        raise KeyError
    recorder.expect("step 0", "load 0", "end of load 0", "end of step 0")


def test_a_name_made_at_run_time_is_as_good_as_one_in_the_source(recorder):
    session = pfo_gpu.Session()
    session.step_begin()
    for name in pfo_gpu.instruction.NAMES:
        session.instruction_begin("".join(list(name)))
        session.instruction_end()
    marks = [mark for name in pfo_gpu.instruction.NAMES for mark in (f"{name} 0", f"end of {name} 0")]
    recorder.expect("step 0", *marks)


def test_an_unknown_instruction_is_other_and_said_once(recorder, warnings):
    session = pfo_gpu.Session()
    with session.step():
        for _ in range(2):
            with session.instruction("froward"):
                pass
    recorder.expect(
        "step 0", "other 0", "end of other 0", "other 1", "end of other 1", "end of step 0"
    )
    assert len(warnings()) == 1 and "'froward' is no instruction" in warnings()[0]


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "arguments",
    [
        ("forward", -1),
        ("forward", 2**40),
        ("forward", "first"),
        ("forward", 0, -1),
        ("forward", 0, 70_000),
        (None,),
        (b"forward",),
        (7,),
        ("\udcff",),
        ([],),
        (Unprintable(),),
    ],
)
def test_what_describes_no_instruction_is_other_and_raises_nothing(recorder, warnings, arguments):
    session = pfo_gpu.Session()
    with session.step():
        for _ in range(2):
            with session.instruction(*arguments):
                pass
    recorder.expect(
        "step 0", "other 0", "end of other 0", "other 1", "end of other 1", "end of step 0"
    )
    assert len(warnings()) == (0 if isinstance(arguments[0], Unprintable) else 1)


def test_a_number_of_any_kind_is_a_microbatch(recorder, warnings):
    class Index:
        def __index__(self):
            return 3

    session = pfo_gpu.Session()
    with session.step(), session.instruction("forward", Index()):
        pass
    recorder.expect("step 0", "forward 3", "end of forward 3", "end of step 0")
    assert not warnings()


def test_instructions_out_of_place_are_counted_and_one_warning_says_what_is_wrong(recorder, warnings):
    session = pfo_gpu.Session()
    for _ in range(3):
        with session.instruction("forward"):
            pass
    assert session.counters.misplaced == 3
    assert len(warnings()) == 1 and "began outside a step" in warnings()[0]


def test_status_names_a_trainer_that_begins_no_step_and_one_whose_instructions_overlap(node):
    attention = lambda: node.run("pfoctl", "status", "--socket", str(node.socket))
    with pfo_gpu.Session(setup_timeout_s=PATIENCE_S) as session:
        for _ in range(3):
            with session.instruction("forward"):
                pass
        until("it is named", lambda: "rank 0: 3 instructions began, but no step" in attention())
        with session.step():
            with session.instruction("forward"), session.instruction("backward"):
                pass
            with session.instruction("forward"), session.instruction("backward"):
                pass
        until("it is named", lambda: "rank 0: 2 instructions began outside a step or inside" in attention())


def test_nested_instructions_are_counted_and_one_warning_says_what_is_wrong(recorder, warnings):
    session = pfo_gpu.Session(sync="cpu")
    for _ in range(2):
        with session.step(), session.instruction("forward"), session.instruction("backward"):
            pass
    assert session.counters.misplaced == 2
    assert len(warnings()) == 1 and "began before the last one had ended" in warnings()[0]


def test_a_function_whose_call_returns_before_its_work_begins_is_refused():
    session = pfo_gpu.Session(job="job", gpu="GPU-1234")

    async def coroutine():
        pass

    def generator():
        yield

    async def both():
        yield

    class Called:
        async def __call__(self):
            pass

    for function in (coroutine, generator, both, functools.partial(coroutine), Called()):
        with pytest.raises(TypeError, match="is a generator or coroutine function"):
            session.instruction("forward")(function)


def test_without_a_daemon_there_is_one_warning_and_training_runs_on(tmp_path, warnings):
    session = pfo_gpu.Session(job="job", gpu="GPU-1234", socket=tmp_path / "none")
    assert session.problem.code == 150
    assert warnings() == [f"training at default clocks: {session.problem}"]
    one_step(session)
    assert session.counters.dropped == 6 and not session.counters.connected
    assert len(warnings()) == 1


def test_a_daemon_that_comes_late_is_found(node):
    node.kill_daemon()
    session = pfo_gpu.Session()
    assert session.problem is not None
    node.start_daemon()
    until("the session connects", lambda: session.problem is None)
    one_step(session)
    assert session.counters.connected and session.counters.sent == 6


def test_a_refused_lease_is_one_warning_that_names_the_holder(node, warnings):
    with pfo_gpu.Session() as session:
        other = pfo_gpu.Session(job="other")
        assert other.problem.code == 4 and "job job" in other.problem.message
        assert len(warnings()) == 1 and "job job" in warnings()[0]
        one_step(other)
        assert session.problem is None and len(warnings()) == 1


def test_the_daemon_knows_the_rank_as_it_was_described(node):
    with pfo_gpu.Session(rank=5, pp_rank=1, pp_degree=4, dp_rank=1, dp_degree=2, num_microbatches=8):
        (rank,) = node.ranks()
        assert (rank["rank"], rank["stage"], rank["pid"]) == (5, 1, os.getpid())
        assert rank["gpu_uuid"] == node.gpus[0]
    until("the lease is given back", lambda: not node.ranks())


def test_the_launchers_variables_give_rank_and_gpu(node, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,2"}.items():
        monkeypatch.setenv(name, value)
    with pfo_gpu.Session(dp_degree=4):
        (rank,) = node.ranks()
        assert (rank["rank"], rank["gpu_uuid"]) == (3, node.cuda_gpus[2])


LAUNCHERS = [
    ("RANK", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
]


@pytest.mark.parametrize(("rank", "local_rank"), LAUNCHERS)
def test_every_launcher_gives_rank_and_gpu(node, monkeypatch, rank, local_rank):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv(rank, "6")
    monkeypatch.setenv(local_rank, "2")
    # What srun starts knows it, unlike the batch script and what that starts.
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pfo_gpu.Session(dp_degree=8):
        (told,) = node.ranks()
        assert (told["rank"], told["gpu_uuid"]) == (6, node.cuda_gpus[2])


def test_a_rank_of_which_nobody_says_the_gpu_gets_none_and_one_warning(node, monkeypatch, warnings):
    monkeypatch.delenv("PFO_GPU")
    with pfo_gpu.Session(rank=2) as session:
        assert session.problem.code == 156
        assert len(warnings()) == 1 and "nothing says which of 4 GPUs rank 2 drives" in warnings()[0]
        one_step(session)
        assert node.ranks() == [] and session.timing == "cpu: there is no lease"


def test_a_batch_script_of_slurm_that_starts_its_ranks_itself_gives_them_no_gpu(node, monkeypatch, warnings):
    monkeypatch.delenv("PFO_GPU")
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    with pfo_gpu.Session(rank=2) as session:
        assert session.problem.code == 156 and len(warnings()) == 1
    # The rank is that of the batch script where nobody says another one.
    with pfo_gpu.Session(pp_rank=2, pp_degree=4) as session:
        assert session.problem.code == 156 and node.ranks() == []


def test_a_task_on_each_node_that_starts_the_ranks_gives_them_no_gpu(node, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    for name, value in {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    with pfo_gpu.Session(dp_rank=5, dp_degree=8) as session:
        assert session.problem.code == 156 and node.ranks() == []


def test_a_cell_that_is_run_again_replaces_its_session_at_once(node, warnings):
    session = pfo_gpu.Session(dp_degree=2, rank=1)
    before = session
    session = pfo_gpu.Session(dp_degree=2, rank=1)
    assert before.closed and session.problem is None and not warnings()
    one_step(session)
    assert (session.counters.sent, session.counters.dropped) == (6, 0)


def test_a_cell_that_is_run_again_and_spells_its_gpu_otherwise_replaces_its_session_as_well(node, monkeypatch, warnings):
    before = pfo_gpu.Session(dp_degree=2, rank=1)
    monkeypatch.setenv("PFO_GPU", "")
    session = pfo_gpu.Session(dp_degree=2, rank=1, gpu=before.gpu)
    assert before.closed and session.problem is None and not warnings()


def test_a_gpu_that_this_process_holds_itself_is_told_so_and_is_had_once_that_session_is_closed(node, warnings):
    former = pfo_gpu.Session(job="former", rank=3, dp_degree=8)
    for job, rank in (("other", 3), ("former", 4)):
        session = pfo_gpu.Session(job=job, rank=rank, dp_degree=8)
        assert session.problem.code == 4 and "held by job former, rank 3" in session.problem.message
        assert "its session of rank 3 of former: close that session" in session.problem.remedy
        assert warnings()[-1].endswith(str(session.problem)) and str(session.problem) in repr(session)
        session.close()
    assert len(warnings()) == 2 and not former.closed and former.problem is None
    former.close()
    with pfo_gpu.Session(job="other", rank=3, dp_degree=8) as session:
        assert session.problem is None


# As pfod words it where this process, which is in a container, has another number.
FORMER = "GPU GPU-1234 is held by job former, rank 0 (user 1000, process 4000000)"


def test_a_gpu_of_a_session_that_was_closed_just_now_is_waited_for_as_long_as_the_setup_may_take(recorder, warnings):
    pfo_gpu.Session(job="former").close()
    # More than can be refused in the 2 s of the default.
    recorder.holder, recorder.refusals = FORMER, 45
    with pfo_gpu.Session(job="other", setup_timeout_s=60) as session:
        assert session.problem is None and not warnings()


def test_a_gpu_of_a_session_that_was_closed_is_not_said_to_need_that(recorder, warnings):
    pfo_gpu.Session(job="former").close()
    recorder.holder, recorder.refusals = FORMER, 10**6
    with pfo_gpu.Session(job="other", setup_timeout_s=0.2) as session:
        remedy = "this process has closed that session, and gets the GPU as soon as pfod notices"
        assert (session.problem.message, session.problem.remedy) == (FORMER, remedy)
        (warning,) = warnings()
        assert remedy in warning


def test_two_ranks_on_one_gpu_are_told_so_before_the_session_gives_up(node, warnings):
    command = "import sys, pfo_gpu as p; s = p.Session(dp_degree=4, rank=1); print(s.problem, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"None\n"
    second = pfo_gpu.Session(dp_degree=4, rank=2, setup_timeout_s=60)
    assert "rank 1" in second.problem.message and "the same GPU" in second.problem.remedy
    same = pfo_gpu.Session(dp_degree=4, rank=1, setup_timeout_s=60)
    assert same.problem.code == 4 and len(warnings()) == 2
    process.communicate()


def test_threads_open_their_sessions_at_the_same_time(recorder):
    failures = []

    def open_sessions(rank):
        try:
            for number in range(50):
                pfo_gpu.Session(job=f"job-{number}", rank=rank).close()
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=open_sessions, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_reason_that_comes_late_is_logged_when_it_comes(node, warnings):
    with pfo_gpu.Session():
        late = pfo_gpu.Session(job="other", setup_timeout_s=0)
        until("the reason is logged", lambda: "held by job job" in warnings()[-1])
        assert [late.problem.code] * 2 == [4, 4] and len(warnings()) <= 2


def report_until(session, happened):
    """Reports steps as a trainer does, until something has happened."""

    def step():
        one_step(session)
        return happened()

    until("the session notices", step)


def test_a_daemon_that_dies_is_said_once_and_so_is_its_return(node, warnings):
    with pfo_gpu.Session(setup_timeout_s=60) as session:
        node.kill_daemon()
        report_until(session, warnings)
        assert session.problem is not None and not session.counters.connected
        node.start_daemon()
        report_until(session, lambda: len(warnings()) > 1)
        assert session.problem is None and session.counters.connected
        lost, back = warnings()
    assert lost.startswith("training at default clocks: ")
    assert re.match(r"pfod has the session of rank 0 of job job again, and \d+ events in between are lost", back)


def test_a_daemon_that_hangs_is_said_once_and_so_is_its_return(node, warnings):
    with pfo_gpu.Session(setup_timeout_s=60) as session:
        node.daemon.send_signal(signal.SIGSTOP)
        try:
            report_until(session, warnings)
            assert "no longer reads what this rank reports" in str(session.problem)
            assert not session.counters.connected and "no longer reads" in repr(session)
        finally:
            node.daemon.send_signal(signal.SIGCONT)
        until("it is back", lambda: len(warnings()) > 1)
        assert session.problem is None and session.counters.connected
        lost, back = warnings()
    assert lost.startswith("training at default clocks: ") and back.startswith("pfod has the session of rank 0 ")


def test_a_daemon_that_hangs_under_a_slow_trainer_is_noticed_before_its_socket_is_full(node, warnings):
    with pfo_gpu.Session(setup_timeout_s=60) as session:
        node.daemon.send_signal(signal.SIGSTOP)
        try:
            # A thread that is not stopped yet would read the step, and nothing would be late.
            tasks = list(Path(f"/proc/{node.daemon.pid}/task").iterdir())
            state = lambda task: (task / "stat").read_text().rpartition(") ")[2][0]
            until("all its threads are stopped", lambda: all(state(task) == "T" for task in tasks))
            one_step(session)
            until("it is said", warnings)
            assert session.counters.dropped == 0
        finally:
            node.daemon.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_lease_that_reports_nothing_is_one_warning(node, warnings, monkeypatch, steps):
    monkeypatch.setattr(watch, "_SILENT_LOOKS", 2)
    with pfo_gpu.Session(setup_timeout_s=60) as session:
        for _ in range(steps):
            one_step(session)
        until("it is said", warnings)
        (warning,) = warnings()
    assert f"holds the lease of GPU {node.gpus[0]} and has reported nothing for a minute" in warning
    assert ("no matter if it evaluates or saves" in warning) == bool(steps)


def test_a_session_says_what_it_is(node):
    session = pfo_gpu.Session(dp_degree=4, rank=3)
    assert repr(session).startswith(f"<pfo_gpu.Session of rank 3 of job, {node.gpus[0]}, timing: cpu: ")
    session.close()
    assert repr(session) == "<pfo_gpu.Session of rank 3 of job, closed>"
    assert session.timing == "closed"


def cells(session):
    """The rows of a session's table in a notebook."""
    return dict(re.findall(r"<tr><th[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td></tr>", session._repr_html_()))


def test_a_notebook_shows_a_session_as_a_table(node):
    with pfo_gpu.Session(dp_degree=4, rank=3) as session:
        session.step_begin()
        until("it is sent", lambda: session.counters.sent == 1)
        shown = cells(session)
        assert (shown["job"], shown["rank"], shown["GPU"], shown["connected"]) == ("job", "3", node.gpus[0], "yes")
        assert shown["timing"].startswith("cpu: ") and (shown["sent"], shown["dropped"]) == ("1", "0")
        assert "problem" not in shown
        with pfo_gpu.Session(job="other", rank=3, dp_degree=8) as other:
            refused = cells(other)
            assert refused["problem"] == html.escape(str(other.problem))
    assert refused["connected"] == "no" and "GPU" not in refused
    assert cells(session)["connected"] == "closed"


OPENS = """
import os, signal, sys, threading, time
import pfo_gpu

threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
started = time.monotonic()
try:
    pfo_gpu.Session(job="job", gpu="GPU-1", socket=sys.argv[1], setup_timeout_s=600)
except KeyboardInterrupt:
    print("interrupted")
"""


USES_IT_AT_THE_END = """
import pfo_gpu

class Trainer:
    def __init__(self):
        self.session, self.itself = pfo_gpu.Session(), self

    def __del__(self):
        self.session.step_begin(at_ns=-1)
        self.session.instruction_begin("froward", -1)
        self.session.instruction_begin("forward", 2**40)
        self.session.step_end()

Trainer()
"""


def test_an_interpreter_that_ends_may_still_call_a_session(recorder):
    ended = subprocess.run([sys.executable, "-c", USES_IT_AT_THE_END], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "panicked" not in ended.stderr and "ignored" not in ended.stderr, ended.stderr


def test_an_interrupt_ends_the_opening_of_a_session(tmp_path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        command = [sys.executable, "-c", OPENS, tmp_path / "silent"]
        # Some shells start what they run in the background with interrupts ignored.
        told = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    assert (told.stdout, told.returncode) == ("interrupted\n", 0), told.stderr


def test_a_gpu_may_be_a_number_or_a_torch_device(node, monkeypatch):
    class Device:
        def __str__(self):
            return "cuda:1"

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{node.gpus[3]},{node.gpus[2]}")
    for gpu in (1, "cuda:1", Device()):
        with pfo_gpu.Session(gpu=gpu):
            assert node.ranks()[0]["gpu_uuid"] == node.gpus[2]
        until("the lease is given back", lambda: not node.ranks())


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"gpu": "MIG-1234"}, "MIG instance"),
        ({"gpu": "nvidia0"}, '"nvidia0" names no GPU'),
        ({"job": "a b"}, '"a b"'),
        ({"pp_rank": 4, "pp_degree": 4}, "pp_rank 4 is not below pp_degree 4"),
        ({"rank": -1}, "rank is -1, which is out of range"),
        ({"dp_degree": 2**32}, "dp_degree is 4294967296, which is out of range"),
        ({"num_microbatches": 0}, "num_microbatches is 0"),
        ({"setup_timeout_s": -1.0}, "setup_timeout_s -1"),
        ({"job": None}, "PFO_JOB"),
    ],
)
def test_a_description_of_no_use_is_an_error_that_names_the_mistake(mistake, named):
    with pytest.raises(ValueError, match=named):
        pfo_gpu.Session(**{"job": "job", "gpu": "GPU-1234", **mistake})


def test_the_counters_of_a_session_that_is_over_are_its_last(recorder):
    with pfo_gpu.Session() as session:
        one_step(session)
        before = session.counters
    after = session.counters
    assert (after.sent, after.connected) == (before.sent, False) == (6, False)


def test_a_session_that_is_over_does_nothing(recorder):
    session = pfo_gpu.Session()
    session.close()
    one_step(session)
    session.close()
    recorder.expect("goodbye")
    assert session.problem is None and session.counters.sent == 0


def test_a_copy_is_over_from_the_start_and_leaves_the_original_alone(recorder):
    session = pfo_gpu.Session()
    for twin in (copy.deepcopy(session), pickle.loads(pickle.dumps(session))):
        assert isinstance(twin, pfo_gpu.Session)
        one_step(twin)
        twin.close()
    session.step_begin()
    recorder.expect("step 0")
    assert len(recorder.said) == 1


def _in_worker(session, problem):
    one_step(session)
    problem.put(session.problem and session.problem.code)


@pytest.mark.parametrize(("method", "code"), [("fork", 158), ("spawn", None)])
def test_a_worker_process_has_a_session_that_is_silent(recorder, method, code):
    session = pfo_gpu.Session()
    session.step_begin()
    context = multiprocessing.get_context(method)
    problem = context.Queue()
    worker = context.Process(target=_in_worker, args=(session, problem))
    worker.start()
    assert problem.get(timeout=60) == code
    worker.join()
    session.step_end()
    recorder.expect("step 0", "end of step 0")
    assert len(recorder.said) == 1


def test_other_threads_run_while_a_session_waits_for_its_daemon(tmp_path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        turns = 0
        opened = threading.Event()

        def open_session():
            pfo_gpu.Session(job="job", gpu="GPU-1", socket=tmp_path / "silent", setup_timeout_s=0.5)
            opened.set()

        thread = threading.Thread(target=open_session)
        thread.start()
        while not opened.is_set():
            turns += 1
        thread.join()
    # One that kept the interpreter's lock would have given no turn before it is open.
    assert turns > 1000
