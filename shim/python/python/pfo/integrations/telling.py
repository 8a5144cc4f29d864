"""Reports training steps and their instructions to a session, and no evaluation."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Optional

from pfo.session import Session

Run = Callable[..., Any]


class Telling:
    """Reports the steps and instructions that it is put around to a session.

    An instruction outside a step belongs to an evaluation and is not reported.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.in_step = False
        self._silent = False

    def begin_step(self) -> None:
        if not self._silent:
            self.in_step = True
            self.session.step_begin()

    def end_step(self) -> None:
        if self.in_step:
            self.in_step = False
            self.session.step_end()

    def begin(self, name: str, microbatch: Optional[int] = None, chunk: int = 0) -> None:
        if self.in_step:
            self.session.instruction_begin(name, microbatch, chunk)

    def end(self) -> None:
        if self.in_step:
            self.session.instruction_end()

    def step(self, run: Run) -> Run:
        """A function that runs and reports a training step."""

        @functools.wraps(run)
        def told(*arguments: Any, **named: Any) -> Any:
            self.begin_step()
            try:
                return run(*arguments, **named)
            finally:
                self.end_step()

        return told

    def evaluation(self, run: Run) -> Run:
        """A function of which nothing is reported, even if it runs a step."""

        @functools.wraps(run)
        def untold(*arguments: Any, **named: Any) -> Any:
            self._silent = True
            try:
                return run(*arguments, **named)
            finally:
                self._silent = False

        return untold


def refuse(framework: str, reason: str) -> None:
    """Logs why a framework is not followed."""
    logging.getLogger("pfo").warning(
        "%s is not followed, and trains on at default clocks: %s", framework, reason
    )
