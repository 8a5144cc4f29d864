"""Reads a GPU while something happens, and keeps what changed and how long each read took."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

from gpu_kit.nvml import Nvml, Reading, now_ns

# More changes of one reading than this are no rhythm that anybody wants to see.
_MOST_CHANGES = 20_000


class Watched:
    """What one reading did."""

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self.name, self.read = name, read
        self.reads = 0
        self.took_ns: list[int] = []
        self.changes: list[list[Any]] = []
        self._last: Any = object()

    def look(self) -> None:
        """Reads once."""
        began = now_ns()
        value = self.read()
        ended = now_ns()
        self.reads += 1
        self.took_ns.append(ended - began)
        if value != self._last and len(self.changes) < _MOST_CHANGES:
            self.changes.append([ended, value])
            self._last = value


def watch(nvml: Nvml, readings: Iterable[Reading], period_s: float, until: Callable[[], bool]) -> dict[str, Any]:
    """Reads all of these once in every period, until it is over. Times are relative to the first.

    The energy counter, whose reads may take long, is read by a thread of its own.
    """
    watched = [Watched(each.name, nvml.reader(each)) for each in readings]
    # What the GPU lacks is read once.
    for each in watched:
        each.look()
    watched = [each for each in watched if each.changes[0][1] is not None]
    slow = [each for each in watched if each.name.startswith("energy")]
    began = now_ns()
    is_over = threading.Event()
    beside = threading.Thread(target=_look, args=(slow, period_s, is_over.is_set), daemon=True)
    beside.start()
    try:
        _look([each for each in watched if each not in slow], period_s, until)
    finally:
        is_over.set()
        beside.join()
    return {
        "began_ns": began,
        "lasted_ns": now_ns() - began,
        "readings": {
            each.name: {
                "reads": each.reads,
                "took_us": quantiles([ns / 1e3 for ns in each.took_ns]),
                "changes": [[at - began, value] for at, value in each.changes],
            }
            for each in watched
        },
    }


def _look(watched: list[Watched], period_s: float, until: Callable[[], bool]) -> None:
    due = time.monotonic()
    while not until():
        for each in watched:
            each.look()
        due = max(due + period_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def sampled(nvml: Nvml, readings: Iterable[Reading], period_s: float, until: Callable[[], bool]) -> dict[str, Any]:
    """A table: the values of all readings, once in every period."""
    readers = [(each.name, nvml.reader(each)) for each in readings]
    readers = [(name, read) for name, read in readers if read() is not None]
    began, due = now_ns(), time.monotonic()
    rows: list[list[Any]] = []
    while not until():
        rows.append([now_ns() - began, *(read() for _, read in readers)])
        due += period_s
        time.sleep(max(0.0, due - time.monotonic()))
    return {"began_ns": began, "columns": ["at_ns", *(name for name, _ in readers)], "rows": rows}


def for_seconds(seconds: float) -> Callable[[], bool]:
    """True once this time is over."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def quantiles(values: list[float]) -> Optional[dict[str, float]]:
    """A distribution, as quantiles by their percentage."""
    if not values:
        return None
    ordered = sorted(values)
    shares = {"min": 0.0, "p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    found = {name: round(ordered[round((len(ordered) - 1) * share)], 3) for name, share in shares.items()}
    return {**found, "count": len(values)}


class Helper:
    """A process of this kit that takes orders."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"gpu_kit.{module}", *arguments],
            cwd=Path(__file__).resolve().parent.parent,
            # As NVML numbers GPUs.
            env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.greeting: Any = None

    def order(self, *words: object) -> Pending:
        """Gives an order, whose answer comes later."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return Pending(self._process)

    def answer(self, within_s: float = 60.0) -> Any:
        """Waits for the next answer."""
        return Pending(self._process).wait(within_s)

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(5)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()


class Pending:
    """An answer that is still to come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._stdout = process.stdout

    def came(self) -> bool:
        """Whether it can be read at once."""
        return bool(select.select([self._stdout], [], [], 0)[0])

    def wait(self, within_s: float = 60.0) -> Any:
        """The answer."""
        if not select.select([self._stdout], [], [], within_s)[0]:
            raise TimeoutError(f"the load has not answered for {within_s:.0f} s")
        line = self._stdout.readline()
        if not line:
            raise RuntimeError("the process of the load has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer
