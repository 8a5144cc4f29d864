"""Lightning's ``Trainer``, of ``lightning`` and of ``pytorch_lightning``."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.integrations.replicas import of_mesh
from pfo_gpu.integrations.reporting import (
    Run,
    Reporter,
    open_session,
    put,
    refuse_unknown,
    require_arguments,
    require_session,
    swap_in,
)
from pfo_gpu.session import Session

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def follow(trainer: Any, session: Optional[Session] = None, **rank: Any) -> Any:
    """Adds the callback that :func:`callback` makes to a trainer, and returns it.

    A trainer that already has such a callback keeps it, and the call returns that one.

    Args:
        trainer: A ``Trainer`` of Lightning, before ``fit``.
        session: As for :func:`callback`.
        rank: As for :func:`callback`.

    Returns:
        The callback; None, after a warning, if the trainer is not Lightning's.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    require_session(session)
    require_arguments(rank)
    try:
        for added in trainer.callbacks:
            if isinstance(getattr(added, "following", None), _Following):
                return added
        added = callback(session, package=type(trainer).__module__, **rank)
        trainer.callbacks.append(added)
    except Exception as error:
        refuse_unknown(type(trainer).__name__, "a Trainer of Lightning", error)
        return None
    return added


def callback(session: Optional[Session] = None, package: Optional[str] = None, **rank: Any) -> Any:
    """Makes a callback that reports a training: ``Trainer(callbacks=[callback()])``.

    The callback opens the session when ``fit`` has started its ranks, with the rank and the GPU of
    the strategy, and closes it when ``fit`` ends; a given session stays open.
    ``callback.following.session`` returns the session. A step contains all batches that an
    optimizer accumulates, and ends after the batch in which it steps. ``training_step`` is the
    ``forward``, up to the backward, and the optimizer's step is an ``optimizer_step``. With manual
    optimization, what ``training_step`` computes after a backward is the next ``forward``.
    Validation is not reported. No hook raises.

    Args:
        session: The session; by default, one is opened when training starts.
        package: ``lightning.pytorch`` or ``pytorch_lightning``, if both are loaded.
        rank: Further arguments of the opened session, which have precedence.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
        ImportError: Neither package is installed.
    """
    following = _Following(session, rank)
    loaded = [name for name in _PACKAGES if name in sys.modules]
    named = [name for name in _PACKAGES if (package or "").split(".")[0] == name.split(".")[0]]
    base = importlib.import_module((named or loaded or list(_PACKAGES))[0]).Callback
    again = functools.partial(callback, package=base.__module__, **rank)
    members = {**{name: _hook(name) for name in _HOOKS}, "following": following}
    # Ranks that are spawned get a callback of their own.
    return type("PfoCallback", (base,), {**members, "__reduce__": lambda _: (again, ())})()


_HOOKS = (
    "on_train_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_fit_end",
    "on_exception",
)


def _hook(name: str) -> Run:
    def hook(made: Any, trainer: Any, *_arguments: Any, **_named: Any) -> None:
        getattr(made.following, name)(trainer)

    return hook


class _Following:
    """What the callback does; the names are those of Lightning's hooks."""

    def __init__(self, session: Optional[Session], rank: dict[str, Any]) -> None:
        require_session(session)
        require_arguments(rank)
        self.session = session
        self._opens = session is None
        self._rank = rank
        self._reporter: Optional[Reporter] = None
        self._strategy: Any = None
        self._in_training_step = False
        self._open = False
        self._has_stepped = False

    def on_train_start(self, trainer: Any) -> None:
        try:
            described = {**_rank(trainer), **self._rank}
            if self._opens:
                self.session = open_session(described)
            if self.session is None:
                return
            strategy = trainer.strategy
            reporter = Reporter("Lightning", self.session, _distribution(trainer))
            swaps = put(reporter, strategy, "training_step", self._told_training_step)
            swap_in([*swaps, *put(reporter, strategy, "optimizer_step", self._told_optimizer_step)])
        except Exception as error:
            refuse_unknown(type(trainer).__name__, "a Trainer of Lightning", error)
            return
        self._reporter = reporter
        self._strategy = strategy

    def on_train_batch_start(self, _trainer: Any) -> None:
        if self._reporter is not None and not self._reporter.in_step:
            self._reporter.begin_step()

    def on_before_backward(self, _trainer: Any) -> None:
        self._change("backward")

    def on_after_backward(self, _trainer: Any) -> None:
        self._change("forward" if self._in_training_step else None)

    def on_before_optimizer_step(self, _trainer: Any) -> None:
        self._change("optimizer_step")

    def on_train_batch_end(self, _trainer: Any) -> None:
        if self._has_stepped:
            self._end_step()

    def on_fit_end(self, _trainer: Any) -> None:
        self._end_step()
        if self._strategy is not None:
            for name in ("training_step", "optimizer_step"):
                vars(self._strategy).pop(name, None)
            self._strategy = self._reporter = None
        if self._opens and self.session is not None:
            self.session.close()

    def on_exception(self, trainer: Any) -> None:
        if self._reporter is not None:
            self._reporter.interrupt_step()
        self.on_fit_end(trainer)

    def _end_step(self) -> None:
        self._has_stepped = False
        self._change(None)
        if self._reporter is not None:
            self._reporter.end_step()

    def _change(self, name: Any) -> None:
        """Ends the instruction that runs, and begins another one."""
        if self._reporter is None:
            return
        if self._open:
            self._reporter.end()
        self._open = name is not None
        if name is not None:
            self._reporter.begin(name)

    def _told_training_step(self, run: Run) -> Run:
        def told(*arguments: Any, **named: Any) -> Any:
            self._in_training_step = True
            self._change("forward")
            try:
                return run(*arguments, **named)
            finally:
                self._in_training_step = False
                self._change(None)

        return told

    def _told_optimizer_step(self, run: Run) -> Run:
        def told(*arguments: Any, **named: Any) -> Any:
            try:
                return run(*arguments, **named)
            finally:
                self._has_stepped = True
                self._change("forward" if self._in_training_step else None)

        return told


def _rank(trainer: Any) -> dict[str, Any]:
    mesh = getattr(trainer.strategy, "_device_mesh", None)
    replica = {"dp_rank": trainer.global_rank, "dp_degree": trainer.world_size}
    return {
        "rank": trainer.global_rank,
        "num_microbatches": trainer.accumulate_grad_batches,
        "first_step": trainer.global_step,
        "gpu": cuda.of_framework(trainer.strategy.root_device),
        **(replica if mesh is None else of_mesh(mesh)),
    }


def _distribution(trainer: Any) -> str:
    return "lightning" if type(trainer).__module__.startswith("lightning.") else "pytorch-lightning"
