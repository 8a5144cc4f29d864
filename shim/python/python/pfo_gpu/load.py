"""Keeps one GPU busy with matrix products, so that pfo can measure how it changes its clocks.

It runs steps of forwards and backwards, as a job of one rank, until standard input ends. `pfoctl
gpu calibrate --gpu` starts it. Requires PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from typing import Any, Optional

import pfo_gpu
from pfo_gpu.program import Failed, ended, imported_pytorch

# Instructions are to be long beside a change of clocks, and a step beside the energy counter's refresh.
_FORWARD_S = 0.04
_MICROBATCHES = 8

# Between two steps the GPU waits for so long, so that the energy counter sees two powers.
_PAUSE_S = 0.05

# Rows and columns of the matrices.
_SIZE = 4096

# Products of a forward. No GPU makes more in its time.
_MOST_PRODUCTS = 1 << 16


def main(arguments: Optional[list[str]] = None) -> int:
    """Works until standard input ends; returns 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m pfo_gpu.load", description=__doc__)
    parser.add_argument("--gpus", required=True, metavar="UUID", help="the GPU, by UUID")
    parser.add_argument("--job", required=True, metavar="NAME", help="the job that pfod is to see")
    options = parser.parse_args(arguments)
    return ended("pfo_gpu.load", lambda: _run(options.gpus, options.job))


def _run(gpu: str, job: str) -> None:
    if not gpu.startswith("GPU-") or "," in gpu:
        raise Failed(f"--gpus {gpu!r} is not one UUID; `pfoctl gpus` lists them")
    # Before PyTorch finds CUDA.
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch = imported_pytorch(gpus=1)
    work = _Work(torch)
    session = pfo_gpu.Session(job=job, gpu=gpu, rank=0, num_microbatches=_MICROBATCHES)
    if session.problem is not None:
        raise Failed(f"no lease: {session.problem}")
    with session:
        while not _standard_input_has_ended(_PAUSE_S):
            with session.step():
                for microbatch in range(_MICROBATCHES):
                    with session.instruction("forward", microbatch):
                        work.run(1)
                    with session.instruction("backward", microbatch):
                        work.run(2)
                torch.cuda.synchronize()


class _Work:
    """Products of matrices that take as long as a forward."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._factors = [torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.float16) for _ in range(2)]
        self._product = torch.empty_like(self._factors[0])
        self._products = 1
        # The first one loads the library.
        self._took_s()
        while (took_s := self._took_s()) < _FORWARD_S / 2 and self._products < _MOST_PRODUCTS:
            self._products *= 2
        self._products = max(1, round(self._products * min(1.0, _FORWARD_S / took_s)))

    def _took_s(self) -> float:
        began = time.monotonic()
        self.run(1)
        self._torch.cuda.synchronize()
        return time.monotonic() - began

    def run(self, times: int) -> None:
        """Computes for as long as this number of forwards takes."""
        for _ in range(times * self._products):
            self._torch.mm(*self._factors, out=self._product)


def _standard_input_has_ended(within_s: float) -> bool:
    stdin = sys.stdin.fileno()
    ready, _, _ = select.select([stdin], [], [], within_s)
    return bool(ready) and not os.read(stdin, 4096)


if __name__ == "__main__":
    sys.exit(main())
