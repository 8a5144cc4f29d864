"""A simulated node on which a trainer trains, for a notebook or a program of one's own."""

from __future__ import annotations

import argparse
import contextlib
from types import TracebackType
from typing import Optional, Sequence

import pfo_gpu
from pfo_gpu_playground import command
from pfo_gpu_playground.failure import Failure
from pfo_gpu_playground.node import SimulatedNode


class Playground:
    """Simulated GPUs, ``pfod`` and ``pfo-agent``, and a trainer on them, until :meth:`stop` or the end of a block.

    Args:
        script: The trainer; else the playground's own pipeline.
        arguments: Its arguments.
        ranks: The number of ranks, one for each GPU.
        gpu: The model of the GPUs.

    Raises:
        Failure: They cannot be started, or the trainer does not train; the message says what to do about it.

    Attributes:
        job: The name of the job.
        node: The node's daemons.
    """

    def __init__(
        self, script: Optional[str] = None, arguments: Sequence[str] = (), *, ranks: int = 4, gpu: str = "A40"
    ) -> None:
        options = argparse.Namespace(script=script, arguments=list(arguments), ranks=ranks, gpu=gpu)
        command.check(options)
        with contextlib.ExitStack() as started:
            directory = started.enter_context(command.temporary_directory())
            simulated = SimulatedNode(directory, f"{ranks}x{gpu}")
            started.callback(simulated.stop)
            simulated.start()
            self.job = command.job_of(options)
            trainer = command.start_trainer(simulated, self.job, options)
            started.callback(trainer.stop)
            command.await_steps(simulated, trainer, self.job, ranks)
            self.node: pfo_gpu.Node = simulated.daemons
            self._started = started.pop_all()

    def stop(self) -> None:
        """Ends everything that it started."""
        self._started.close()

    def __enter__(self) -> Playground:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()


__all__ = ["Failure", "Playground"]
