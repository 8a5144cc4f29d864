"""One rank: runs a trainer's script, whose instructions are computed on a simulated GPU.

The script stays as it is. What its session reports begins and ends work on the GPU: an instruction takes as
long as the GPU's clock makes it take, whatever the processor needs for it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from typing import Any, Callable, Optional

import pfo_gpu
from pfo_gpu_playground import work as works
from pfo_gpu_playground.gpu import SimulatedGpu
from pfo_gpu_playground.processes import end_with_parent


def main() -> None:
    """``python -m pfo_gpu_playground.rank SCRIPT [ARGUMENT…]``, with the variables of a launcher."""
    end_with_parent(signal.SIGKILL)
    local = int(os.environ["LOCAL_RANK"])
    gpus = os.environ["PFO_PLAYGROUND_GPUS"].split(",")
    os.environ["PFO_GPU"] = gpus[local % len(gpus)]
    trainer, state = os.environ["PFO_PLAYGROUND_TRAINER"], os.environ["PFO_SIM_STATE"]
    gpu = SimulatedGpu(trainer, state, local % len(gpus))
    work = works.of_environment(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    compute_what_sessions_report(Computation(gpu, work))
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


class Computation:
    """What a session reports, as work on a GPU."""

    def __init__(self, gpu: SimulatedGpu, work: works.Work) -> None:
        self._gpu = gpu
        self._work = work
        self._under_way: Optional[tuple[str, int, float]] = None

    def begin_step(self) -> None:
        self._work.begin_step()

    def begin(self, name: str, chunk: int) -> None:
        self._under_way = (name, chunk, time.perf_counter())
        seconds = self._work.seconds(name, chunk)
        if seconds is not None:
            self._gpu.begin(works.kind_of(name), seconds)

    def end(self) -> None:
        if self._under_way is None:
            return
        name, chunk, began = self._under_way
        self._under_way = None
        self._work.took(name, chunk, time.perf_counter() - began)
        self._gpu.end()


def compute_what_sessions_report(computation: Computation) -> None:
    """From now on, every session of this process computes."""
    session: Any = pfo_gpu.Session
    begin: Callable[..., None] = session.instruction_begin
    end: Callable[..., None] = session.instruction_end
    begin_step: Callable[..., None] = session.step_begin

    def step_begin(self: Any) -> None:
        computation.begin_step()
        begin_step(self)

    def instruction_begin(self: Any, name: Any, microbatch: Any = None, chunk: Any = 0) -> None:
        begin(self, name, microbatch, chunk)
        computation.begin(str(name), chunk if isinstance(chunk, int) else 0)

    def instruction_end(self: Any) -> None:
        computation.end()
        end(self)

    session.step_begin = step_begin
    session.instruction_begin = instruction_begin
    session.instruction_end = instruction_end


if __name__ == "__main__":
    main()
