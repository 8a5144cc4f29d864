"""When a call counts, with a GPU that gets as far as the test says."""

import ctypes
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from node import until

import pfo_gpu

SOURCE = Path(__file__).parents[2] / "tests" / "cuda" / "streams.c"

_streams = iter(range(1, 127))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The stand-in of CUDA, loaded into this process for good."""
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *options, "-o", path, SOURCE], check=True)
    return ctypes.CDLL(str(path))


class Cuda:
    """A stream of the stand-in's, and a PyTorch that works on it."""

    def __init__(self, library):
        self.stream = next(_streams)
        self.current = 0
        self.asked = []
        self.waited_for = []
        self.synchronized = 0
        self.capturing = False
        self._library = library
        library.test_make_current(ctypes.c_void_p(1))

    def reach(self, number):
        """Lets the GPU get to the event of this number."""
        self._library.test_reach(ctypes.c_long(self.stream), number)

    @property
    def recorded(self):
        return self._library.test_recorded(ctypes.c_long(self.stream))

    def leave(self):
        """Leaves this thread without a context."""
        self._library.test_make_current(None)

    def devices(self, number, contexts):
        """Shows devices, with contexts on some of them."""
        self._library.test_devices(number, sum(1 << device for device in contexts))

    def block(self, on):
        self._library.test_block(ctypes.c_long(self.stream), int(on))

    @property
    def blocked(self):
        return self._library.test_blocked(ctypes.c_long(self.stream))

    def capture(self, on):
        self._library.test_capture(ctypes.c_long(self.stream), int(on))

    def clock(self, milliseconds):
        """Sets the GPU's own clock, which then stands still; from -1 on it is that of the host."""
        self._library.test_clock(ctypes.c_long(0), milliseconds)

    def own(self, device):
        self._library.test_own(ctypes.c_long(self.stream), device)

    def torch(self):
        torch = types.ModuleType("torch")
        torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=self._stream_of)
        torch.cuda = types.SimpleNamespace(
            current_device=lambda: self.current,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
            synchronize=self._synchronize,
        )
        return torch

    def _stream_of(self, device):
        self.asked.append(device)
        return self.stream

    def _synchronize(self, device):
        self.waited_for.append(device)
        self.synchronized += 1
        raise RuntimeError("CUDA error: the trainer's own next call says so")


@pytest.fixture
def cuda(library, monkeypatch):
    cuda = Cuda(library)
    monkeypatch.setitem(sys.modules, "torch", cuda.torch())
    yield cuda
    cuda.clock(-1)
    cuda.devices(0, [])
    cuda.leave()


def test_by_default_a_call_counts_when_the_gpu_gets_to_it(recorder, cuda):
    session = pfo_gpu.Session(gpu="GPU-1234")
    with session.step(), session.instruction("forward"):
        pass
    assert cuda.recorded == 4 and recorder.marks() == []
    cuda.reach(3)
    recorder.expect("step 0", "forward 0", "end of forward 0")
    assert session.counters.sent == 3
    cuda.reach(4)
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0")
    assert recorder.times_ns() == sorted(recorder.times_ns())


def test_a_closed_session_says_goodbye_when_the_gpu_has_got_to_its_last_call(recorder, cuda):
    session = pfo_gpu.Session(gpu="GPU-1234")
    with session.step():
        pass
    session.close()
    session.step_begin()
    assert recorder.marks() == []
    cuda.reach(2)
    recorder.expect("step 0", "end of step 0", "goodbye")


GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU_1 = "GPU-01010101-0101-0101-0101-010101010101"


def test_a_session_works_in_the_context_of_its_gpu_whichever_is_current(recorder, cuda):
    cuda.devices(2, [0, 1])
    cuda.own(1)
    recorder.gpu = GPU_1.encode()
    session = pfo_gpu.Session(gpu=GPU_1)
    with session.step(), session.instruction("forward"):
        pass
    assert (cuda.recorded, set(cuda.asked), recorder.marks()) == (4, {1}, [])
    assert (session.timing, session.counters.untimed) == ("stream on cuda:1", 0)
    cuda.reach(4)
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0")


@pytest.mark.parametrize("sync", ["stream", "device"])
def test_a_context_on_another_gpu_is_not_the_sessions_and_the_calls_are_counted(recorder, cuda, warnings, sync):
    cuda.devices(2, [0])
    recorder.gpu = GPU_1.encode()
    session = pfo_gpu.Session(gpu=GPU_1, sync=sync)
    with session.step():
        pass
    recorder.expect("step 0", "end of step 0")
    assert session.timing == "cpu: there is no CUDA context on cuda:1"
    assert (session.counters.untimed, cuda.waited_for) == (2, [])
    assert not warnings(), "a first step may be what initializes CUDA"
    for _ in range(3):
        with session.step():
            pass
    (warning,) = warnings()
    assert "count when they are made" in warning and "no CUDA context on cuda:1" in warning


@pytest.mark.parametrize("named", ["argument", "environment"])
def test_the_device_that_is_waited_for_is_the_leased_one_whichever_is_current(recorder, cuda, monkeypatch, named):
    cuda.devices(2, [0, 1])
    recorder.gpu = GPU_1.encode()
    monkeypatch.setenv("PFO_GPU", GPU_1)
    session = pfo_gpu.Session(gpu=GPU_1 if named == "argument" else None, sync="device")
    with session.step():
        pass
    assert (cuda.current, cuda.waited_for, session.timing) == (0, [1, 1], "device cuda:1")


@pytest.mark.parametrize(("sync", "timing"), [("stream", "stream on cuda:1"), ("device", "device cuda:1")])
def test_a_context_that_comes_in_the_middle_of_a_step_is_used_from_the_next_one_on(recorder, cuda, sync, timing):
    cuda.devices(2, [0])
    recorder.gpu = GPU_1.encode()
    session = pfo_gpu.Session(gpu=GPU_1, sync=sync)
    session.step_begin()
    cuda.devices(2, [0, 1])
    assert session.timing == f"cpu until the next step begins, then {timing}"
    session.step_end()
    assert (cuda.recorded, cuda.waited_for, session.counters.untimed) == (0, [], 2)
    cuda.own(1)
    session.step_begin()
    assert (session.timing, cuda.recorded + len(cuda.waited_for)) == (timing, 1)


def test_a_gpu_that_cuda_does_not_see_is_said(recorder, cuda):
    cuda.devices(2, [0])
    session = pfo_gpu.Session()
    session.step_begin()
    assert session.timing == "cpu: CUDA does not see GPU-1234"


def test_the_only_gpu_with_a_context_is_the_ranks(recorder, cuda, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    cuda.devices(2, [1])
    pfo_gpu.Session()
    assert recorder.asked == [GPU_1]


def test_pytorchs_current_device_is_the_ranks_also_among_several_contexts(recorder, cuda, monkeypatch):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv("LOCAL_RANK", "0")
    cuda.devices(2, [0, 1])
    cuda.current = 1
    pfo_gpu.Session()
    pfo_gpu.Session(gpu="cuda", job="another")
    assert recorder.asked == [GPU_1, GPU_1]


def test_a_launcher_and_cuda_that_disagree_get_no_gpu(recorder, cuda, monkeypatch, warnings):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv("LOCAL_RANK", "1")
    cuda.devices(2, [0])
    session = pfo_gpu.Session()
    assert session.problem.code == 156 and recorder.asked == []
    assert "local rank is 1, but this process works on cuda:0 only" in warnings()[0]


def test_a_launcher_counts_the_gpus_of_the_node_and_cuda_the_only_one_of_the_container(
    recorder, cuda, monkeypatch, tmp_path
):
    monkeypatch.delenv("PFO_GPU")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("PFO_DEVICES", str(tmp_path))
    (tmp_path / "nvidia3").touch()
    cuda.devices(1, [0])
    pfo_gpu.Session()
    assert recorder.asked == [GPU_0]


def test_other_threads_run_while_cuda_takes_no_more_work(recorder, cuda):
    session = pfo_gpu.Session()
    session.step_begin()
    cuda.block(True)
    thread = threading.Thread(target=session.step_end)
    thread.start()
    # If the call kept the interpreter's lock, this would never end.
    until("the call waits for CUDA", lambda: cuda.blocked)
    cuda.block(False)
    thread.join()
    cuda.reach(2)
    recorder.expect("step 0", "end of step 0")


def test_a_session_that_is_opened_before_pytorch_is_imported_uses_it(recorder, cuda, monkeypatch):
    torch = sys.modules["torch"]
    monkeypatch.delitem(sys.modules, "torch")
    session = pfo_gpu.Session(sync="device")
    session.step_begin()
    assert (cuda.synchronized, session.counters.untimed) == (0, 1)
    monkeypatch.setitem(sys.modules, "torch", torch)
    session.step_end()
    assert cuda.synchronized == 1


def test_a_framework_of_ones_own_names_its_stream(recorder, cuda):
    asked = []
    session = pfo_gpu.Session(stream=lambda: asked.append(1) or cuda.stream)
    session.step_begin()
    assert (len(asked), cuda.recorded) == (1, 1)
    cuda.reach(1)
    recorder.expect("step 0")


@pytest.mark.parametrize("torch", ["not imported", "imported for something else"])
def test_without_pytorch_on_the_gpu_the_stream_is_cupys_current_one(recorder, cuda, monkeypatch, torch):
    if torch == "not imported":
        monkeypatch.delitem(sys.modules, "torch")
    else:
        monkeypatch.setattr(sys.modules["torch"].cuda, "is_initialized", lambda: False)
    cuda.devices(2, [0, 1])
    cuda.own(1)
    recorder.gpu = GPU_1.encode()
    asked = []
    cupy = types.ModuleType("cupy")
    stream = types.SimpleNamespace(ptr=cuda.stream)
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda device: asked.append(device) or stream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    session = pfo_gpu.Session(gpu=GPU_1)
    session.step_begin()
    assert (asked, cuda.asked, cuda.recorded, recorder.marks()) == ([1], [], 1, [])
    cuda.reach(1)
    recorder.expect("step 0")


def test_without_pytorch_and_cupy_the_stream_is_the_legacy_default_one(recorder, cuda, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    cuda.stream = 0
    before = cuda.recorded
    session = pfo_gpu.Session()
    session.step_begin()
    assert (cuda.recorded, recorder.marks()) == (before + 1, [])
    cuda.reach(before + 1)
    recorder.expect("step 0")


def test_with_device_synchronization_each_call_waits_for_the_device(recorder, cuda):
    session = pfo_gpu.Session(sync="device")
    session.step_begin()
    assert (cuda.synchronized, cuda.recorded) == (1, 0)
    cuda.capturing = True
    session.instruction_begin("forward")
    assert cuda.synchronized == 1, "not while a graph is captured"
    cuda.capturing = False
    session.step_end()
    recorder.expect("step 0", "end of step 0")
    assert session.counters.captured == 1


def test_what_a_graph_captures_is_not_told_and_said_once(recorder, cuda, warnings):
    session = pfo_gpu.Session()
    session.step_begin()
    cuda.capture(True)
    for _ in range(2):
        with session.instruction("forward"):
            pass
    cuda.capture(False)
    # Reported around the launch, as the warning says.
    with session.instruction("forward_backward"):
        pass
    session.step_end()
    cuda.reach(4)
    recorder.expect("step 0", "forward_backward 0", "end of forward_backward 0", "end of step 0")
    (warning,) = warnings()
    assert "while a CUDA graph is captured" in warning and "around the launch" in warning
    assert (session.counters.captured, session.counters.misplaced) == (4, 0)


def test_a_call_carries_the_time_of_the_gpu_and_not_that_of_the_wake_up(recorder, cuda):
    session = pfo_gpu.Session()
    with session.step():
        pass
    cuda.clock(7000)
    cuda.reach(1)
    recorder.expect("step 0")
    time.sleep(0.05)
    cuda.clock(7003)
    cuda.reach(2)
    recorder.expect("step 0", "end of step 0")
    begun, ended = recorder.times_ns()
    assert ended - begun == 3_000_000


def test_a_trainer_that_knows_when_its_gpu_worked_says_so(recorder, warnings):
    session = pfo_gpu.Session()
    session.step_begin(at_ns=10)
    session.instruction_begin("forward", 0, at_ns=11)
    session.instruction_end(at_ns=22)
    session.step_end(at_ns=-1)
    session.step_begin(at_ns="now")
    recorder.expect("step 0", "forward 0", "end of forward 0", "end of step 0", "step 1")
    times = recorder.times_ns()
    assert times[:3] == [10, 11, 22] and all(at_ns > 1000 for at_ns in times[3:])
    assert [warning.split(" is ")[0] for warning in warnings()] == ["at_ns=-1", "at_ns='now'"]


def test_each_gpu_of_a_process_has_a_session_of_its_own_on_its_own_context(recorder, cuda, library):
    cuda.devices(2, [0, 1])
    other = Cuda(library)
    other.own(1)
    cuda.own(0)
    recorder.gpu = GPU_0.encode()
    first = pfo_gpu.Session(rank=0, gpu="cuda:0", stream=lambda: cuda.stream)
    recorder.gpu = GPU_1.encode()
    second = pfo_gpu.Session(rank=1, gpu="cuda:1", stream=lambda: other.stream)
    for session in (first, second):
        session.step_begin()
    assert (first.timing, second.timing) == ("stream on cuda:0", "stream on cuda:1")
    other.reach(1)
    recorder.expect("step 0", connection=1)
    assert recorder.marks(0) == [] and first.counters.untimed == second.counters.untimed == 0
    cuda.reach(1)
    recorder.expect("step 0", connection=0)


def test_with_cpu_time_cuda_is_left_alone(recorder, cuda):
    session = pfo_gpu.Session(sync="cpu")
    session.step_begin()
    recorder.expect("step 0")
    assert (cuda.synchronized, cuda.recorded) == (0, 0)


@pytest.mark.parametrize("sync", ["stream", "device"])
def test_without_cuda_a_call_counts_when_it_is_made(recorder, monkeypatch, sync):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    session = pfo_gpu.Session(sync=sync)
    session.step_begin()
    recorder.expect("step 0")


def test_another_word_for_it_is_an_error_that_names_the_words():
    with pytest.raises(ValueError, match='sync="gpu".*"stream", "device" and "cpu"'):
        pfo_gpu.Session(job="job", gpu="GPU-1234", sync="gpu")


def test_an_interrupt_while_waiting_reaches_the_trainer(recorder, cuda, monkeypatch):
    def interrupted(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["torch"].cuda, "synchronize", interrupted)
    session = pfo_gpu.Session(sync="device")
    with pytest.raises(KeyboardInterrupt):
        session.step_begin()


def test_a_forked_worker_neither_waits_for_the_gpu_nor_tells_of_it(recorder, cuda):
    session = pfo_gpu.Session()
    session.step_begin()
    child = os.fork()
    if child == 0:
        session.step_end()
        session.close()
        os._exit(cuda.recorded)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    cuda.reach(1)
    recorder.expect("step 0")


TRAINER = """
import ctypes, sys, threading, time
import pfo_gpu

cuda = ctypes.CDLL(sys.argv[1])
cuda.test_make_current(ctypes.c_void_p(1))
session = pfo_gpu.Session(setup_timeout_s=60)
with session.step():
    pass
# The GPU gets there while the interpreter ends.
gpu = threading.Thread(
    target=lambda: (time.sleep(0.2), cuda.test_reach(ctypes.c_long(0), 2)), daemon=True
)
gpu.start()
CLOSES
"""


def test_a_session_that_is_closed_just_before_the_end_delivers_what_the_gpu_gets_to(recorder, library):
    trainer = TRAINER.replace("CLOSES", "session.close(); del session")
    subprocess.run([sys.executable, "-c", trainer, library._name], check=True)
    until("the session has ended", lambda: len(recorder.marks()) == 3)
    recorder.expect("step 0", "end of step 0", "goodbye")


def test_an_interpreter_that_ends_lets_the_gpu_get_to_the_last_call(recorder, library):
    subprocess.run([sys.executable, "-c", TRAINER.replace("CLOSES", ""), library._name], check=True)
    until("the session has ended", lambda: len(recorder.marks()) == 3)
    recorder.expect("step 0", "end of step 0", "goodbye")
