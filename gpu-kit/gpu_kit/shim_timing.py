"""The shim beside PyTorch's own events, with what takes a daemon's place and writes down what it receives."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from typing import Any

from gpu_kit.watch import quantiles

_HELLO, _EVENT, _WELCOME = 1, 2, 129
_INSTRUCTIONS = 400
_SIZE = 4096


class Recorder:
    """Grants every lease, and keeps when each mark happened, by the words of protocol/README.md."""

    def __init__(self, path: str, gpu: bytes) -> None:
        self.times_ns: list[int] = []
        self._gpu = gpu
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        stream, _ = self._listener.accept()
        with stream, stream.makefile("rb") as frames:
            while header := frames.read(8):
                length, _, kind = struct.unpack("<IHH", header)
                payload = frames.read(length)
                if kind == _HELLO:
                    stream.sendall(self._welcome())
                elif kind == _EVENT:
                    self.times_ns.append(struct.unpack_from("<QQ", payload)[1])

    def _welcome(self) -> bytes:
        def text(value: bytes) -> bytes:
            return struct.pack("<Q", len(value)) + value

        payload = text(b"recorder") + struct.pack("<Q", 1) + text(self._gpu) + text(b"model")
        payload += struct.pack("<Q", 60_000)
        return struct.pack("<IHH", len(payload), 1, _WELCOME) + payload


def _gpu_uuid(torch: Any) -> str:
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _measure(torch: Any, pfo_gpu: Any) -> dict[str, Any]:
    factors = [torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    product = torch.empty_like(factors[0])

    def work() -> None:
        for _ in range(4):
            torch.mm(*factors, out=product)

    def bare() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_INSTRUCTIONS):
            work()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    bare()
    uuid = _gpu_uuid(torch)
    os.environ["PFO_GPU"] = uuid
    found: dict[str, Any] = {"version": pfo_gpu.__version__}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        recorder = Recorder(path, uuid.encode())
        session = pfo_gpu.Session(gpu=uuid, socket=path, job="kit", num_microbatches=_INSTRUCTIONS)
        found["timing"] = session.timing
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_INSTRUCTIONS)
        ]

        def followed(timed: bool) -> tuple[float, list[float]]:
            torch.cuda.synchronize()
            calls_us = []
            began = time.perf_counter()
            session.step_begin()
            for microbatch, (first, last) in enumerate(events):
                at = time.perf_counter_ns()
                session.instruction_begin("forward", microbatch)
                calls_us.append((time.perf_counter_ns() - at) / 1e3)
                if timed:
                    first.record()
                work()
                if timed:
                    last.record()
                at = time.perf_counter_ns()
                session.instruction_end()
                calls_us.append((time.perf_counter_ns() - at) / 1e3)
            session.step_end()
            torch.cuda.synchronize()
            return time.perf_counter() - began, calls_us

        followed(True)
        bare_s, followed_s, calls_us = [], [], []
        for _ in range(4):
            bare_s.append(bare())
            took, calls = followed(False)
            followed_s.append(took)
            calls_us += calls
        time.sleep(0.3)
        recorder.times_ns.clear()
        followed(True)
        time.sleep(0.5)
        marks = list(recorder.times_ns)
        found["counters"] = str(session.counters)
        session.close()
    by_torch = [first.elapsed_time(last) for first, last in events]
    ends = marks[1:-1]
    by_shim = [(ends[2 * i + 1] - ends[2 * i]) / 1e6 for i in range(len(ends) // 2)]
    found["marks"] = len(marks)
    found["call_us"] = quantiles(calls_us)
    found["instruction_ms"] = {"by_pytorch": quantiles(by_torch), "by_shim": quantiles(by_shim)}
    if len(by_shim) == len(by_torch):
        found["longer_by_shim_us"] = quantiles([(s - t) * 1e3 for s, t in zip(by_shim, by_torch)])
    found["bare_s"], found["followed_s"] = bare_s, followed_s
    per = (min(followed_s) - min(bare_s)) / _INSTRUCTIONS
    found["cost_of_a_followed_instruction_us"] = round(per * 1e6, 3)
    return found


def _main() -> dict[str, Any]:
    try:
        import pfo_gpu
        import torch
    except Exception as error:
        return {"left_out": f"{type(error).__name__}: {error}"}
    if not torch.cuda.is_available():
        return {"left_out": "PyTorch sees no GPU"}
    return _measure(torch, pfo_gpu)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    print(json.dumps(_main()))
