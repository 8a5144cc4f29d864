"""Keeps a GPU busy in a process of its own, as standard input orders: one order a line, one JSON answer each.

    kinds                             what it can do, and which of these draws the most
    run KIND SECONDS PIECE_MS         without a pause, in pieces of about this long
    wave KIND ON_MS PERIOD_MS COUNT   on and off
    row COUNT SEED                    instructions of three kinds in random order, with pauses
    times KIND PIECE_MS SECONDS       the GPU's time of each piece, and how long the host waits for an empty one
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any, Callable

from gpu_kit.work import Gpu

_IN_FLIGHT = 3


def _import_torch() -> Any:
    try:
        import torch
    except Exception:  # Whatever is wrong with it: this kit has loads of its own.
        return None
    return torch


class Orders:
    """Those that only need a piece of work of about some length."""

    densest = "matmul"

    def piece(self, kind: str, milliseconds: float) -> None:
        """Works, and waits for the end."""
        raise NotImplementedError

    def wave(self, kind: str, on_ms: str, period_ms: str, count: str) -> Any:
        """On and off, each period at its own time."""
        spans, first = [], time.monotonic_ns()
        for period in range(int(count)):
            _sleep_until_ns(first + int(period * float(period_ms) * 1e6))
            spans.append(self._span(kind, float(on_ms)))
        return {"spans": spans}

    def row(self, count: str, seed: str) -> Any:
        """Instructions in random order: what a step of a pipeline is to an energy counter."""
        chance, spans = random.Random(int(seed)), []
        lengths_ms = {self.densest: 30.0, "copy": 18.0, "spin": 24.0}
        for _ in range(int(count)):
            kind = chance.choice(list(lengths_ms))
            spans.append([kind, *self._span(kind, lengths_ms[kind])])
            time.sleep(chance.choice([0.0, 0.008, 0.02]))
        return {"spans": spans}

    def _span(self, kind: str, milliseconds: float) -> list[int]:
        began = time.monotonic_ns()
        self.piece(kind, milliseconds)
        return [began, time.monotonic_ns()]


class Load(Orders):
    """A real GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._cuda, self.densest = gpu, gpu.cuda, gpu.densest

    def kinds(self) -> Any:
        """What there is."""
        units = {name: kind.unit_ms for name, kind in self._gpu.kinds.items()}
        return {"unit_ms": units, "densest": self._gpu.densest, "multiprocessors": self._cuda.multiprocessors}

    def run(self, kind: str, seconds: str, piece_ms: str) -> Any:
        """Without a pause: some pieces are always queued."""
        work = self._gpu.kinds[kind]
        amount, until = work.for_ms(float(piece_ms)), time.monotonic() + float(seconds)
        events = [self._cuda.event() for _ in range(_IN_FLIGHT + 1)]
        began = time.monotonic_ns()
        took: list[float] = []
        at: list[int] = []
        count = 0
        self._cuda.record(events[0])
        while time.monotonic() < until or count < _IN_FLIGHT:
            if count >= _IN_FLIGHT:
                self._note(events, count - _IN_FLIGHT, took, at)
            work.launch(amount)
            count += 1
            self._cuda.record(events[count % len(events)])
        for piece in range(max(0, count - _IN_FLIGHT), count):
            self._note(events, piece, took, at)
        return {"began_ns": began, "ended_ns": time.monotonic_ns(), "amount": amount, "took_ms": took, "at_ns": at}

    def _note(self, events: list[Any], piece: int, took: list[float], at: list[int]) -> None:
        first, last = events[piece % len(events)], events[(piece + 1) % len(events)]
        self._cuda.wait(last)
        at.append(time.monotonic_ns())
        took.append(self._cuda.elapsed_ms(first, last))

    def piece(self, kind: str, milliseconds: float) -> None:
        work = self._gpu.kinds[kind]
        work.launch(work.for_ms(milliseconds))
        self._cuda.synchronize()

    def times(self, kind: str, piece_ms: str, seconds: str) -> Any:
        """Pieces one after the other, then launches of nothing."""
        ran = self.run(kind, seconds, piece_ms)
        empty_us = []
        until = time.monotonic() + float(seconds) / 2
        while time.monotonic() < until:
            began = time.perf_counter_ns()
            self._cuda.launch("empty", 0, 1)
            self._cuda.synchronize()
            empty_us.append((time.perf_counter_ns() - began) / 1e3)
        return {"took_ms": ran["took_ms"], "empty_us": empty_us}


def _sleep_until_ns(moment: int) -> None:
    while (left := moment - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9 if left > 2_000_000 else 0)


def obey(load: Any) -> None:
    """Reads orders until standard input ends."""
    for line in sys.stdin:
        name, *arguments = line.split()
        order: Callable[..., Any] = getattr(load, name)
        try:
            answer = order(*arguments)
        except Exception as error:  # The kit reports it, and goes on with what else it measures.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    loaded = _import_torch() if "--without-torch" not in sys.argv else None
    print(json.dumps({"torch": getattr(loaded, "__version__", None)}), flush=True)
    # The context comes with the first order.
    sys.stdin.readline()
    obey(Load(Gpu(int(sys.argv[1]), loaded)))
