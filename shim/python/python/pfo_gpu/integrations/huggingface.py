"""The ``Trainer`` of Hugging Face Transformers."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.integrations.replicas import of_mesh
from pfo_gpu.integrations.reporting import (
    Swap,
    Reporter,
    goes_on,
    put,
    refuse,
    refuse_unknown,
    report_to,
    swap_in,
    reporter_of,
)
from pfo_gpu.session import Session


def follow(trainer: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward, backward and optimizer step of a ``Trainer`` to a session.

    A step contains all microbatches that the optimizer accumulates, and its step. ``compute_loss``
    is the ``forward``, the backward of the trainer's accelerator the ``backward``, and the
    optimizer's step an ``optimizer_step``. With DeepSpeed, the optimizer steps inside the last
    ``backward``. Evaluation is not reported. A second call for the same trainer changes nothing,
    unless it gives another session or the first one is closed: the trainer then reports to the new
    one.

    Args:
        trainer: The trainer, before ``train()``.
        session: The session; by default, one is opened with rank and GPU of the trainer.
        rank: Further arguments of the opened session, which have precedence; ``first_step`` if
            training continues.

    Returns:
        The session, which lives as long as the trainer; None if the trainer cannot be followed, as
        in a process that trains on several GPUs with ``DataParallel``.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    former = reporter_of(getattr(trainer, "compute_loss", None))
    if former is not None and goes_on(former, session):
        return former.session
    try:
        if trainer.args.n_gpu > 1:
            refuse(
                "Transformers' Trainer",
                f"this process trains on {trainer.args.n_gpu} GPUs with DataParallel, and a session is of one"
                " GPU; start a process for each, as torchrun does",
            )
            return None
        described = {**_rank(trainer), **rank} if session is None else {}
        callback = _callback_class()
    except Exception as error:
        refuse_unknown(type(trainer).__name__, "a Trainer of Transformers", error)
        return None

    def swap(opened: Session) -> None:
        reporter = Reporter("Transformers' Trainer", opened, "transformers")
        hooks = callback(reporter, trainer)
        trainer.add_callback(hooks)
        try:
            swap_in(_swaps(reporter, trainer))
        except BaseException:
            trainer.remove_callback(hooks)
            raise

    refused = partial(refuse_unknown, type(trainer).__name__, "a Trainer of Transformers")
    return report_to(session, described, former, swap, refused)


def _rank(trainer: Any) -> dict[str, Any]:
    arguments = trainer.args
    mesh = getattr(trainer.accelerator, "torch_device_mesh", None)
    replica = {"dp_rank": arguments.process_index, "dp_degree": arguments.world_size}
    return {
        "rank": arguments.process_index,
        "num_microbatches": arguments.gradient_accumulation_steps,
        "gpu": cuda.of_framework(arguments.device),
        **(replica if mesh is None else of_mesh(mesh)),
    }


def _swaps(reporter: Reporter, trainer: Any) -> list[Swap]:
    swaps = put(reporter, trainer, "compute_loss", partial(reporter.instruction, "forward"))
    for name in ("evaluate", "predict"):
        if hasattr(trainer, name):
            swaps += put(reporter, trainer, name, reporter.evaluation)
    if hasattr(trainer, "train"):
        swaps += put(reporter, trainer, "train", reporter.training)
    return [*swaps, *_backward(reporter, trainer)]


def _backward(reporter: Reporter, trainer: Any) -> list[Swap]:
    return put(reporter, trainer.accelerator, "backward", partial(reporter.instruction, "backward"))


def _callback_class() -> Any:
    from transformers import TrainerCallback

    # A copy of the trainer, or one that is unpickled, has a callback that does nothing.
    copies = {"__reduce__": lambda _hooks: (TrainerCallback, ())}
    return type("PfoCallback", (_Hooks, TrainerCallback), copies)


class _Hooks:
    """Reports begins and ends of steps and optimizer steps; the names are those of Transformers'
    hooks."""

    def __init__(self, reporter: Reporter, trainer: Any) -> None:
        self._reporter = reporter
        self._trainer = trainer

    def on_train_begin(self, *_arguments: Any, **_named: Any) -> None:
        # One with other batches, after one that found no memory.
        self._reporter.end_step()
        # A search of hyperparameters makes the accelerator anew.
        try:
            if reporter_of(self._trainer.accelerator.backward) is not self._reporter:
                swap_in(_backward(self._reporter, self._trainer))
        except Exception as error:
            refuse_unknown("a new accelerator", "that of a Trainer of Transformers", error)

    def on_step_begin(self, *_arguments: Any, **_named: Any) -> None:
        self._reporter.begin_step()

    def on_pre_optimizer_step(self, *_arguments: Any, **_named: Any) -> None:
        self._reporter.begin("optimizer_step")

    def on_optimizer_step(self, *_arguments: Any, **_named: Any) -> None:
        self._reporter.end()

    def on_step_end(self, *_arguments: Any, **_named: Any) -> None:
        self._reporter.end_step()

    def on_train_end(self, *_arguments: Any, **_named: Any) -> None:
        self._reporter.end_step()
