"""Reports training steps and their instructions to a session, and no evaluation."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import sys
from collections.abc import Mapping
from types import MethodType
from typing import Any, Callable, Optional

from pfo_gpu.instruction import Name
from pfo_gpu.integrations import releases
from pfo_gpu.session import Session

Run = Callable[..., Any]
Swap = tuple[Any, str, Any]


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
        self._misses_session = False

    def begin_step(self) -> None:
        if self._silent:
            return
        # What interrupts a training tells no end.
        self.end_step()
        if self.session.was_replaced and not self._misses_session:
            self._misses_session = True
            logging.getLogger("pfo_gpu").warning(
                "%s is not reported any more: another session of the same rank has replaced its own; where several"
                " are followed, give the session of the first to the others (session=)",
                self._framework,
            )
        self.in_step = True
        self.session.step_begin()

    def end_step(self) -> None:
        if self.in_step:
            self.in_step = self.in_instruction = False
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

        def told(*arguments: Any, **named: Any) -> Any:
            self.begin(name, chunk=chunk)
            try:
                return run(*arguments, **named)
            finally:
                self.end()

        return told

    def step(self, run: Run, goes_on: bool = False) -> Run:
        """A function that runs and reports a training step, which goes on until ``end_step`` if that is said."""

        def told(*arguments: Any, **named: Any) -> Any:
            self.begin_step()
            try:
                return run(*arguments, **named)
            finally:
                if not goes_on:
                    self.end_step()

        return told

    def training(self, run: Run) -> Run:
        """A function after which no step goes on, even if it is interrupted."""

        def ended(*arguments: Any, **named: Any) -> Any:
            try:
                return run(*arguments, **named)
            finally:
                self.end_step()

        return ended

    def evaluation(self, run: Run) -> Run:
        """A function of which nothing is reported, even if it runs a step."""

        def untold(*arguments: Any, **named: Any) -> Any:
            self._silent = True
            try:
                return run(*arguments, **named)
            finally:
                self._silent = False

        return untold


class Told:
    """A method, or a function, that is also reported.

    A deep copy or a pickle of its owner has the method itself, of the copy: it acts on the copy, and is reported to
    nobody. Its signature, ``__self__`` and ``__func__`` are those of the method.
    """

    __wrapped__: Run

    def __init__(self, run: Run, telling: Telling, tells: Run) -> None:
        functools.update_wrapper(self, run)
        self.run = run
        self.telling = telling
        self.tells = tells

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.tells(*arguments, **named)

    @property
    def __self__(self) -> Any:
        return self.run.__self__  # type: ignore[attr-defined]

    @property
    def __func__(self) -> Run:
        """The function of the method: schedulers of learning rates put their own around an optimizer's."""
        run = self.run

        def unbound(_owner: Any, *arguments: Any, **named: Any) -> Any:
            return self.tells(*arguments, **named)

        function = functools.wraps(getattr(run, "__func__", run))(unbound)
        if not isinstance(run, MethodType):
            # It has no parameter for its owner.
            del function.__wrapped__
        function.pfo_told = self  # type: ignore[attr-defined]
        return function

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.run, memo)

    def __reduce__(self) -> Any:
        # Whoever unpickles it may have no pfo.
        return self.run.__reduce__() if isinstance(self.run, MethodType) else (functools.partial, (self.run,))


def told_of(run: object) -> Optional[Told]:
    """What is reported of this, even if a scheduler of learning rates has put its own function around it."""
    told = run if isinstance(run, Told) else getattr(run, "pfo_told", None)
    return told if isinstance(told, Told) else None


def plain(run: Run) -> Run:
    """This without what reports it."""
    told = told_of(run)
    return run if told is None else told.run


def telling_of(run: object) -> Optional[Telling]:
    """What reports this already, if something does."""
    told = told_of(run)
    return None if told is None else told.telling


def put(telling: Telling, owner: Any, name: str, tells: Callable[[Run], Run]) -> list[Swap]:
    """What has a method of an owner reported, instead of by what has reported it so far."""
    run = getattr(owner, name)
    told = told_of(run)
    if told is None:
        return [(owner, name, Told(run, telling, tells(run)))]
    return [(told, "telling", telling), (told, "tells", tells(told.run))]


class Hook:
    """A hook that PyTorch keeps with a module. Copies and pickles of the module have one that does nothing."""

    def __init__(self, told: Run) -> None:
        self.told = told
        # Not in all releases.
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        self._is_compiling = getattr(compiler, "is_compiling", bool)

    def __call__(self, *arguments: Any) -> None:
        # No compiler can take a session into its graph, and one that must take all would raise.
        if not self._is_compiling():
            self.told(*arguments)

    def __reduce__(self) -> Any:
        return _do_nothing.__reduce__()


# Takes everything, and is there without pfo too.
_do_nothing: Run = contextlib.nullcontext().__exit__


def hook(register: Callable[[Hook], Any], kept: Mapping[int, Any], told: Run) -> Callable[[], None]:
    """Has a module call this, instead of what it has called so far; returns what undoes that."""
    former = next((one for one in kept.values() if isinstance(one, Hook)), None)
    if former is None:
        remove: Callable[[], None] = register(Hook(told)).remove
        return remove
    before, former.told = former.told, told
    return functools.partial(setattr, former, "told", before)


def open_session(described: dict[str, Any]) -> Optional[Session]:
    """The session of a rank that framework and environment describe; None, with one warning, if they are wrong.

    Raises ``TypeError`` for an argument that no session has, which only the caller can have given.
    """
    try:
        return Session(**described)
    except TypeError:
        raise
    except Exception as error:
        logging.getLogger("pfo_gpu").warning("training at default clocks: %s", error)
        return None


def require_session(session: object) -> None:
    """Raises ``TypeError`` at setup for what would raise in each call of the training loop."""
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session is a {type(session).__name__}, and not a pfo_gpu.Session")


def require_arguments(rank: dict[str, Any]) -> None:
    """Raises ``TypeError`` at setup for an argument that no session has, where a session is opened later."""
    for name in rank:
        if name not in inspect.signature(Session.__init__).parameters:
            raise TypeError(f"pfo_gpu.Session has no argument {name!r}")


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
    reported = open_session(described) if session is None else session
    if reported is None:
        return None
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


def swap_in(swaps: list[Swap]) -> None:
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
