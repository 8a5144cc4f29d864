"""Reports training steps and their instructions to a session, but no evaluation."""

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

from pfo_gpu import _native, cuda
from pfo_gpu.instruction import Name
from pfo_gpu.integrations import releases
from pfo_gpu.integrations.accounts import Account, difference, nothing_of
from pfo_gpu.session import Session

Run = Callable[..., Any]
Swap = tuple[Any, str, Any]


class Reporter(_native.Reporter):
    """Reports the steps and instructions of functions that it wraps to a session, and checks each
    step.

    An instruction outside a step belongs to an evaluation and is not reported.

    Args:
        framework: The name of the followed object, for warnings.
        session: The session.
        distribution: The name of the framework on PyPI.
        account: How to check a step, unless :meth:`step` gives another way.
    """

    session: Session

    # Whether what computes outside a step is a mistake. Elsewhere it may belong to a copy, which shares what is
    # followed, or to a model that is found by other ways.
    says_outside = False

    def __init__(
        self,
        framework: str,
        session: Session,
        distribution: str,
        account: Account = Account(),
    ) -> None:
        self.session = session
        self._framework = framework
        self._distribution = distribution
        self.account = account
        self._reported: set[str] = set()
        self._is_interrupted = False
        self._has_reported = False
        # Whether a method that runs a step has been called and has not returned.
        self._runs_step = False

    def begin_step(self) -> None:
        if self.silent:
            return
        # What interrupts a training tells no end.
        self._is_interrupted = self._is_interrupted or self.in_instruction
        self.end_step()
        if self.session.was_replaced:
            self._report_once(
                "replaced",
                "%s is not reported any more: another session of the same rank has replaced its own; where several"
                " are followed, give the session of the first to the others (session=)",
                self._framework,
            )
        self._is_interrupted = False
        if not self.in_step:
            self._step_begin()

    def end_step(self) -> None:
        # A step that has failed before it computed anything is none: the next one goes on with it.
        if self.in_step and not (self._is_interrupted and self._is_empty()):
            self._step_end()
            if not self._is_interrupted:
                self._account()

    def interrupt_step(self) -> None:
        """Marks the open step as failed, so that it is not checked."""
        self._is_interrupted = True

    def _is_empty(self) -> bool:
        return not any(count for _, count in self.counts())

    def _account(self) -> None:
        """Logs, once for each kind of instruction, that the last step did not report it as often as
        it ran."""
        try:
            counts = dict(self.counts())
            expected = self.account.expected()
            if expected is None:
                found = nothing_of(counts, self._has_reported)
            else:
                found = difference(counts, expected)
            self._has_reported = self._has_reported or not found
            if found:
                self._report_once(
                    ", ".join(found),
                    "%s is followed, but a step of it is not reported as it ran: %s. What is missing is neither"
                    " measured nor planned. %s (%s)",
                    self._framework,
                    ", ".join(found.values()),
                    self.account.reason() or "This release of it may not be supported.",
                    releases.in_words(self._distribution),
                )
        except Exception as error:
            self._report_once("account", "the steps of %s cannot be accounted for: %r", self._framework, error)

    def _began_outside(self, name: str) -> None:
        """Is called with an instruction that begins outside a step."""
        if self.says_outside and _computes_gradients():
            self._report_once(
                "outside",
                "%s computes a %s outside the steps that are followed, so that it is neither measured nor planned;"
                " call follow before anything keeps its step, and run each step by that",
                self._framework,
                name,
            )

    def _report_once(self, what: str, text: str, *arguments: object) -> None:
        if what not in self._reported and len(self._reported) < _MOST_REPORTS:
            self._reported.add(what)
            logging.getLogger("pfo_gpu").warning(text, *arguments)

    def instruction(self, name: Name, run: Run, chunk: int = 0) -> Run:
        """Wraps a function as an instruction, whose microbatches are counted."""
        return _native.InstructionCall(self, run, name, chunk)

    def step(
        self,
        run: Run,
        *,
        goes_on: bool = False,
        is_training: Callable[[], bool] = lambda: True,
        account: Optional[Account] = None,
    ) -> Run:
        """Wraps a function as a training step. With ``goes_on``, the step lasts until ``end_step``.

        A step inside a step is part of it. A step for which ``is_training`` returns False is not
        reported.
        """
        runs_alone = self.evaluation(run)

        def reported(*arguments: Any, **named: Any) -> Any:
            if self.silent or self._runs_step:
                return run(*arguments, **named)
            if not is_training():
                return runs_alone(*arguments, **named)
            self.begin_step()
            self.account = account or self.account
            self._runs_step = True
            try:
                return run(*arguments, **named)
            except BaseException:
                self.interrupt_step()
                raise
            finally:
                self._runs_step = False
                if not goes_on:
                    self.end_step()

        return reported

    def training(self, run: Run) -> Run:
        """Wraps a function that ends the open step when it returns or raises."""

        def ended(*arguments: Any, **named: Any) -> Any:
            try:
                return run(*arguments, **named)
            except BaseException:
                self.interrupt_step()
                raise
            finally:
                self.end_step()

        return ended

    def evaluation(self, run: Run) -> Run:
        """Wraps a function so that nothing in it is reported, not even a step."""

        def untold(*arguments: Any, **named: Any) -> Any:
            before, self.silent, session = self.silent, True, self.session
            session._quiet += 1
            try:
                return run(*arguments, **named)
            finally:
                session._quiet -= 1
                self.silent = before

        return untold


# Of one followed object.
_MOST_REPORTS = 20


def _computes_gradients() -> bool:
    """Whether PyTorch, if there is one, records what it computes for a backward."""
    torch = cuda.pytorch()
    enabled = getattr(torch, "is_grad_enabled", None)
    return True if enabled is None else bool(enabled())


class Reported(_native.Reported):
    """A method, or a function, whose calls are reported.

    A deep copy or a pickle of its owner has the plain method of the copy, which is not reported.
    Signature, ``__self__`` and ``__func__`` are those of the method.
    """

    __wrapped__: Run

    def __init__(self, run: Run, reporter: Reporter, tells: Run) -> None:
        functools.update_wrapper(self, run)
        self.run = run
        self.reporter = reporter

    @property
    def __self__(self) -> Any:
        return self.run.__self__  # type: ignore[attr-defined]

    @property
    def __func__(self) -> Run:
        """The function of the method. Learning-rate schedulers wrap that of an optimizer's
        ``step``."""
        run = self.run

        def unbound(_owner: Any, *arguments: Any, **named: Any) -> Any:
            return self.tells(*arguments, **named)

        function = functools.wraps(getattr(run, "__func__", run))(unbound)
        if not isinstance(run, MethodType):
            # It has no parameter for its owner.
            del function.__wrapped__
        function.pfo_reported = self  # type: ignore[attr-defined]
        return function

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.run, memo)

    def __reduce__(self) -> Any:
        # Whoever unpickles it may have no pfo.
        return self.run.__reduce__() if isinstance(self.run, MethodType) else (functools.partial, (self.run,))


def reported_of(run: object) -> Optional[Reported]:
    """The :class:`Reported` of a function, also inside the wrapper of a learning-rate scheduler;
    None if it is not reported."""
    told = run if isinstance(run, Reported) else getattr(run, "pfo_reported", None)
    return told if isinstance(told, Reported) else None


def plain(run: Run) -> Run:
    """The function without its reporting wrapper."""
    told = reported_of(run)
    return run if told is None else told.run


def reporter_of(run: object) -> Optional[Reporter]:
    """The reporter of a function; None if it is not reported."""
    told = reported_of(run)
    return None if told is None else told.reporter


def put(reporter: Reporter, owner: Any, name: str, tells: Callable[[Run], Run]) -> list[Swap]:
    """Swaps that have a reporter report a method of an owner, in the place of an earlier
    reporter."""
    run = getattr(owner, name)
    told = reported_of(run)
    if told is None:
        return [(owner, name, Reported(run, reporter, tells(run)))]
    return [(told, "reporter", reporter), (told, "tells", tells(told.run))]


class Hook:
    """A hook of a PyTorch module. In copies and pickles of the module, it does nothing."""

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
    """Sets the function that a module's hook calls; returns a function that undoes it."""
    former = next((one for one in kept.values() if isinstance(one, Hook)), None)
    if former is None:
        remove: Callable[[], None] = register(Hook(told)).remove
        return remove
    before, former.told = former.told, told
    return functools.partial(setattr, former, "told", before)


def open_session(described: dict[str, Any]) -> Optional[Session]:
    """Opens a session with these arguments; None, with one warning, if they are invalid.

    Raises ``TypeError`` for an unknown argument, because only the caller can have given it.
    """
    try:
        return Session(**described)
    except TypeError:
        raise
    except Exception as error:
        logging.getLogger("pfo_gpu").warning("training at default clocks: %s", error)
        return None


def require_session(session: object) -> None:
    """Raises ``TypeError`` at setup for an object that is no session: it would raise in the
    training loop."""
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session is a {type(session).__name__}, and not a pfo_gpu.Session")


def require_arguments(rank: dict[str, Any]) -> None:
    """Raises ``TypeError`` at setup for an unknown argument of a session that is opened later."""
    for name in rank:
        if name not in inspect.signature(Session.__init__).parameters:
            raise TypeError(f"pfo_gpu.Session has no argument {name!r}")


def report_to(
    session: Optional[Session],
    described: dict[str, Any],
    former: Optional[Reporter],
    swap: Callable[[Session], object],
    refused: Callable[[Exception], None],
) -> Optional[Session]:
    """Has a framework report to a session, which is opened if there is none; None if that fails.

    If ``former`` reports already, only its session changes.
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


def goes_on(reporter: Reporter, session: Optional[Session]) -> bool:
    """Whether a second ``follow`` changes nothing: the session is open, and no other one is
    given."""
    return not reporter.session.closed and session in (None, reporter.session)


def swap_in(swaps: list[Swap]) -> None:
    """Sets attributes of objects: all of them, or none if one fails."""
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
    """Logs that an object is not what pfo expects of a framework."""
    refuse(framework, f"it is not {expected} as pfo knows it ({type(error).__name__}: {error})")
