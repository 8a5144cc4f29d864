"""Measures calls in Python for pfo-bench. It says a line at a time, and goes on when it is answered."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pynvml

import pfo_gpu
from pfo_gpu._native import wait_for_gpu

# As between two instructions of a step, where the thread waits for its GPU or a neighbour.
REST_S = 0.003

CUDA = Path(__file__).parents[2] / "shim" / "tests" / "cuda" / "streams.c"


def say(*words):
    print(*words, flush=True)
    if not sys.stdin.readline():
        sys.exit()


class Child:
    """A process behind a queue that sets the clocks it is sent, as Zeus has one."""

    def __init__(self, gpu=None):
        self.queue = multiprocessing.Queue()
        process = multiprocessing.Process(target=self._run, args=(gpu,), daemon=True)
        process.start()

    def ask_for(self, mhz):
        self.queue.put(mhz, block=False)

    def _run(self, gpu):
        if gpu is not None:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        while True:
            mhz = self.queue.get()
            if gpu is not None:
                pynvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)


# As `timeit` does it: the statement stands in the loop itself, with no call around it.
TIMED = """
def block(calls, now):
    times = []
    for m in range(calls):
        before = now()
        {statement}
        times.append(now() - before)
        {afterwards}
    return times
"""


def timed(statement, afterwards, **names):
    exec(TIMED.format(statement=statement, afterwards=afterwards), names)
    return names["block"]


def call(socket, stream_socket, blocks, calls):
    """Times a begin in every way, against daemons that are drained after each block."""
    # Before there are threads: the child is forked.
    queue = Child()
    session = pfo_gpu.Session(job="bench", gpu="GPU-0", socket=socket, sync="cpu")
    session.step_begin()
    optimizer = pfo_gpu.PipelineFrequencyOptimizer.__new__(pfo_gpu.PipelineFrequencyOptimizer)
    optimizer.session = session
    on_stream, reach = session_on_a_stream(stream_socket)
    end = "session.instruction_end()"

    def nothing(name, microbatch):
        pass

    begin = 'session.instruction_begin("forward", m)'
    ways = {
        "clock": timed("pass", "pass"),
        "nothing": timed('nothing("forward", m)', "pass", nothing=nothing),
        "begin": timed(begin, end, session=session),
        "block": timed(
            'with session.instruction("forward", m): pass', "pass", session=session
        ),
        "optimizer": timed(
            'optimizer.on_instruction_begin("forward")', end, optimizer=optimizer, session=session
        ),
        "stream": timed(begin, end, session=on_stream),
        "queue": timed("queue.ask_for(m)", "pass", queue=queue),
    }
    reach()
    sent = {told: told.counters.sent for told in (session, on_stream)}
    say("ready")
    for _ in range(int(blocks)):
        for name, block in ways.items():
            times = block(int(calls), time.perf_counter_ns)
            told = on_stream if name == "stream" else session
            if told is on_stream:
                reach()
            events, sent[told] = told.counters.sent - sent[told], told.counters.sent
            say(name, events, *times)


def session_on_a_stream(socket):
    """A session under a stand-in of CUDA, and what lets its GPU get to all that was said.

    It is on another GPU: a second session on the same one would close the first.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "libcuda.so.1")
        options = ["-O2", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["cc", *options, "-o", path, CUDA], check=True)
        cuda = ctypes.CDLL(path)
    cuda.test_make_current(ctypes.c_void_p(1))
    session = pfo_gpu.Session(job="bench", gpu="GPU-1", socket=socket)
    session.step_begin()

    def reach():
        cuda.test_reach(ctypes.c_long(0), cuda.test_recorded(ctypes.c_long(0)))
        wait_for_gpu(60)

    return session, reach


def path(way, steps, busy_ms, clocks):
    """Says when each call was made that asks for another clock, the thread busy after each."""
    clocks = [int(mhz) for mhz in clocks.split(",")]
    if way == "queue":
        child = Child(os.environ["PFO_GPU"])
    else:
        session = pfo_gpu.Session()
    say("ready")
    called = []
    for _ in range(int(steps)):
        if way == "pfo":
            session.step_begin()
        for index in range(len(clocks)):
            if way == "pfo":
                session.instruction_begin(("forward", "backward")[index % 2], index // 2)
                called.append(time.monotonic_ns())
                session.instruction_end()
            else:
                called.append(time.monotonic_ns())
                child.ask_for(clocks[(index + 1) % len(clocks)])
            be_busy(int(busy_ms))
        if way == "pfo":
            session.step_end()
    say(*called)


def apart(rounds):
    """Times a begin with its end, one pair after the other, with other work between them, and after a rest."""
    queue = Child()
    session = pfo_gpu.Session(sync="cpu")
    session.step_begin()

    def empty(m):
        pass

    def pair(m):
        session.instruction_begin("forward", m)
        session.instruction_end()

    def two_empty(m):
        empty(m)
        empty(m)

    for name, calls, pause_ms in (
        ("empty", two_empty, 0),
        ("hot", pair, 0),
        ("apart", pair, 30),
        ("rested", pair, None),
        ("queue-hot", queue.ask_for, 0),
        ("queue-apart", queue.ask_for, 30),
        ("queue-rested", queue.ask_for, None),
    ):
        times = []
        for m in range(int(rounds)):
            if pause_ms is None:
                time.sleep(REST_S)
            else:
                other_work(pause_ms)
            before = time.perf_counter_ns()
            calls(m)
            times.append(time.perf_counter_ns() - before)
        say(name, *times)


def other_work(milliseconds):
    """As a trainer's is: it takes the processor's caches."""
    until = time.monotonic_ns() + milliseconds * 1_000_000
    while time.monotonic_ns() < until:
        sum(bytearray(1 << 20))


def memory():
    """Says what pfo takes of this process, in KiB: its import, a session, and steps."""
    # The import is that of a process of its own: this one has it already.
    measure = (
        # What a trainer has loaded anyway.
        "import logging, os, threading, weakref\n"
        "def kib():\n"
        "    lines = open('/proc/self/smaps_rollup')\n"
        "    return sum(int(line.split()[1]) for line in lines if line.startswith('Private'))\n"
        "marks = [kib()]\n"
        "import pfo_gpu\n"
        "marks.append(kib())\n"
        "session = pfo_gpu.Session(sync='cpu')\n"
        "assert session.gpu, session.problem\n"
        "marks.append(kib())\n"
        "for _ in range(1000):\n"
        "    with session.step():\n"
        "        for m in range(16):\n"
        "            with session.instruction('forward', m): pass\n"
        "marks.append(kib())\n"
        "print(*(max(0, after - before) for before, after in zip(marks, marks[1:])))\n"
    )
    command = [sys.executable, "-c", measure]
    say(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


def be_busy(milliseconds):
    """As a trainer's thread is that launches kernels: in Python, without a pause."""
    until = time.monotonic_ns() + milliseconds * 1_000_000
    while time.monotonic_ns() < until:
        pass


if __name__ == "__main__":
    {"call": call, "path": path, "apart": apart, "memory": memory}[sys.argv[1]](*sys.argv[2:])
