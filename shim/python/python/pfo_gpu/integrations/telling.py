"""Reports training steps and their instructions to a session, and no evaluation."""

from __future__ import annotations

import functools
import logging
from types import MethodType
from typing import Any, Callable, Optional

from pfo_gpu.instruction import Name
from pfo_gpu.integrations import releases
from pfo_gpu.session import Session

Run = Callable[..., Any]


class Telling:
    """Reports the steps and instructions that it is put around to a session.

    An instruction outside a step belongs to an evaluation and is not reported. ``distribution`` is what the
    framework is called on PyPI.
    """

    def __init__(self, framework: str, session: Session, distribution: str) -> None:
        self.session = session
        self.in_step = False
        self.in_instruction = False
        self._framework = framework
        self._distribution = distribution
        self._silent = False
        self._has_told = False

    def begin_step(self) -> None:
        if not self._silent:
            self.in_step = True
            self.session.step_begin()

    def end_step(self) -> None:
        if self.in_step:
            self.in_step = False
            self.session.step_end()
            if not self._has_told:
                self._has_told = True
                logging.getLogger("pfo_gpu").warning(
                    "%s is followed, but ran no forward or backward in its first step; this release of it may not be"
                    " supported (%s)",
                    self._framework,
                    releases.in_words(self._distribution),
                )

    def begin(self, name: Name, microbatch: Optional[int] = None, chunk: int = 0) -> None:
        if self.in_step and not self._silent:
            # The optimizer is found by other ways than what it optimizes.
            self._has_told = self._has_told or name.startswith(("forward", "backward"))
            self.in_instruction = True
            self.session.instruction_begin(name, microbatch, chunk)

    def end(self) -> None:
        if self.in_step and not self._silent:
            self.in_instruction = False
            self.session.instruction_end()

    def instruction(self, name: Name, run: Run, chunk: int = 0) -> Run:
        """A function that runs and reports an instruction, whose microbatches are counted."""

        @functools.wraps(run)
        def told(*arguments: Any, **named: Any) -> Any:
            self.begin(name, chunk=chunk)
            try:
                return run(*arguments, **named)
            finally:
                self.end()

        told.pfo_telling = self  # type: ignore[attr-defined]
        return told

    def step(self, run: Run, goes_on: bool = False) -> Run:
        """A function that runs and reports a training step, which goes on until ``end_step`` if that is said."""

        @functools.wraps(run)
        def told(*arguments: Any, **named: Any) -> Any:
            # An evaluation may run a step inside one that goes on.
            if not self._silent:
                self.end_step()
            self.begin_step()
            try:
                return run(*arguments, **named)
            finally:
                if not goes_on:
                    self.end_step()

        told.pfo_telling = self  # type: ignore[attr-defined]
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


def as_method(run: Run, owner: Any) -> Run:
    """A function as a method: schedulers of learning rates take the function out of an optimizer's."""

    @functools.wraps(run)
    def method(_owner: Any, *arguments: Any, **named: Any) -> Any:
        return run(*arguments, **named)

    return MethodType(method, owner)


def telling_of(step: object) -> Optional[Telling]:
    """What reports a step already, if something does."""
    telling = getattr(step, "pfo_telling", None)
    return telling if isinstance(telling, Telling) else None


def open_session(described: dict[str, Any]) -> Optional[Session]:
    """The session of a rank that a framework describes; None, with one warning, if the description is wrong.

    For what opens a session while a framework already trains, where nothing may raise.
    """
    try:
        return Session(**described)
    except Exception as error:
        logging.getLogger("pfo_gpu").warning("training at default clocks: %s", error)
        return None


def require_session(session: object) -> None:
    """Raises ``TypeError`` at setup for what would raise in each call of the training loop."""
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session is a {type(session).__name__}, and not a pfo_gpu.Session")


def report_to(
    session: Optional[Session],
    described: dict[str, Any],
    former: Optional[Telling],
    swap: Callable[[Session], object],
    refused: Callable[[Exception], None],
) -> Optional[Session]:
    """Has a framework report to a session, to one that is described if there is none; None if it cannot.

    What is followed already keeps what ``former`` has put around it.
    """
    require_session(session)
    reported = Session(**described) if session is None else session
    if former is not None:
        former.session = reported
        return reported
    try:
        swap(reported)
    except Exception as error:
        if session is None:
            reported.close()
        refused(error)
        return None
    return reported


def goes_on(telling: Telling, session: Optional[Session]) -> bool:
    """Whether something that is followed already stays as it is when it is to be followed again."""
    return not telling.session.closed and session in (None, telling.session)


def swap_in(swaps: list[tuple[Any, str, Any]]) -> None:
    """Gives objects these attributes; all of them, or none if one of them fails."""
    done: list[tuple[Any, str, bool, Any]] = []
    try:
        for owner, name, value in swaps:
            own = name in getattr(owner, "__dict__", {})
            done.append((owner, name, own, getattr(owner, name, None)))
            setattr(owner, name, value)
    except BaseException:
        for owner, name, own, before in reversed(done[:-1]):
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
        raise


def refuse(framework: str, reason: str) -> None:
    """Logs why a framework is not followed."""
    logging.getLogger("pfo_gpu").warning(
        "%s is not followed, and trains on at default clocks: %s", framework, reason
    )


def refuse_unknown(framework: str, expected: str, error: Exception) -> None:
    """Logs that something is not what a framework has."""
    refuse(framework, f"it is not {expected} as pfo knows it ({type(error).__name__}: {error})")
