"""The orders of `load`, obeyed by a simulated GPU: `pfo-sim-trainer compute` works in its place."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from gpu_kit.load import Orders, obey

_KINDS = {"matmul": "backward", "copy": "forward"}


class SimulatedLoad(Orders):
    """Dense work is a backward, and waiting is waiting."""

    def __init__(self, program: str, gpu: str) -> None:
        self._trainer = subprocess.Popen(
            [program, "compute", "--gpu", gpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _order(self, line: str) -> None:
        assert self._trainer.stdin is not None
        self._trainer.stdin.write(f"{line}\n")
        self._trainer.stdin.flush()

    def _answer(self) -> float:
        assert self._trainer.stdout is not None
        return float(self._trainer.stdout.readline())

    def _work(self, kind: str, milliseconds: float) -> float:
        if kind not in _KINDS:
            self._order("wait")
            self._answer()
            time.sleep(milliseconds / 1e3)
            return milliseconds
        self._order(f"begin {_KINDS[kind]} {milliseconds / 1e3:.6f}")
        self._order("end")
        return self._answer() * 1e3

    def kinds(self) -> Any:
        """What there is. A GPU with a context waits."""
        self._work("spin", 1.0)
        return {"unit_ms": dict.fromkeys([*_KINDS, "spin"], 1.0), "densest": "matmul", "multiprocessors": 0}

    def run(self, kind: str, seconds: str, piece_ms: str) -> Any:
        """Without a pause."""
        began, until = time.monotonic_ns(), time.monotonic() + float(seconds)
        took, at = [], []
        while time.monotonic() < until:
            took.append(self._work(kind, float(piece_ms)))
            at.append(time.monotonic_ns())
        return {"began_ns": began, "ended_ns": time.monotonic_ns(), "amount": 1, "took_ms": took, "at_ns": at}

    def piece(self, kind: str, milliseconds: float) -> None:
        self._work(kind, milliseconds)

    def times(self, kind: str, piece_ms: str, seconds: str) -> Any:
        """Pieces one after the other."""
        return {"took_ms": self.run(kind, seconds, piece_ms)["took_ms"], "empty_us": []}


if __name__ == "__main__":
    print(json.dumps({"torch": None}), flush=True)
    sys.stdin.readline()
    obey(SimulatedLoad(sys.argv[2], sys.argv[1]))
