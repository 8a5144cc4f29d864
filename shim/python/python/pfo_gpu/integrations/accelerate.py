"""Hugging Face Accelerate."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.integrations.replicas import of_mesh
from pfo_gpu.integrations.reporting import (
    Run,
    Swap,
    Reporter,
    goes_on,
    hook,
    put,
    refuse,
    refuse_unknown,
    report_to,
    swap_in,
    reporter_of,
)
from pfo_gpu.session import Session


def follow(accelerator: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward, backward and optimizer step of a training with an ``Accelerator`` to a
    session.

    A step begins with the first forward of a model in training, and contains accumulated
    microbatches. It ends when as many optimizer steps have run as there are prepared optimizers, or
    with the first forward after one: if two optimizers take turns, as those of a GAN do, an
    iteration is two steps. ``accelerator.backward`` is the ``backward``. Models that are evaluated,
    that run without gradients, or that ``torch.compile`` compiles after ``prepare``, are not
    reported. Models and optimizers that are prepared later are followed, too. A second call for the
    same accelerator changes nothing, unless it gives another session or the first one is closed:
    the accelerator then reports to the new one.

    Args:
        accelerator: The accelerator, after ``prepare`` has returned models and optimizers.
        session: The session; by default, one is opened with rank and GPU of the accelerator.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the accelerator; None if the accelerator cannot be
        followed, as with Megatron-LM.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    former = reporter_of(getattr(accelerator, "backward", None))
    if isinstance(former, _Steps):
        former.take_prepared()
    if former is not None and goes_on(former, session):
        return former.session
    try:
        reason = _reason_against(accelerator)
        described = {**_rank(accelerator), **rank} if session is None else {}
    except Exception as error:
        refuse_unknown(type(accelerator).__name__, "an Accelerator", error)
        return None
    if reason is not None:
        refuse("Accelerate", reason)
        return None

    def swap(opened: Session) -> None:
        steps = _Steps(opened, accelerator)
        steps.take(
            [
                *put(steps, accelerator, "backward", steps.backward),
                *(
                    prepares
                    for name in ("prepare", "prepare_model", "prepare_optimizer")
                    if hasattr(accelerator, name)
                    for prepares in put(steps, accelerator, name, steps.prepared)
                ),
            ]
        )

    refused = partial(refuse_unknown, type(accelerator).__name__, "an Accelerator")
    return report_to(session, described, former, swap, refused)


def _reason_against(accelerator: Any) -> Optional[str]:
    if str(accelerator.distributed_type).endswith("MEGATRON_LM"):
        return (
            "Megatron-LM runs its pipeline; follow that, with pfo_gpu.integrations.megatron.follow("
            "get_model_config(model.base_model))"
        )
    if not accelerator._models or not accelerator._optimizers:
        return "it has prepared no model and optimizer yet; call follow after accelerator.prepare(…)"
    return None


def _rank(accelerator: Any) -> dict[str, Any]:
    mesh = getattr(accelerator, "torch_device_mesh", None)
    replica = {"dp_rank": accelerator.process_index, "dp_degree": accelerator.num_processes}
    return {
        "rank": accelerator.process_index,
        "num_microbatches": accelerator.gradient_accumulation_steps,
        "gpu": cuda.of_framework(accelerator.device),
        **(replica if mesh is None else of_mesh(mesh)),
    }


class _Steps(Reporter):
    """Finds where one step ends and the next one begins, because no call of Accelerate tells."""

    def __init__(self, session: Session, accelerator: Any) -> None:
        super().__init__("Accelerate", session, "accelerate")
        self._accelerator = accelerator
        self._stepped = 0
        self._running: Optional[Any] = None
        self._has_begun = False

    def take(self, swaps: list[Swap]) -> None:
        """Follows what is prepared, and swaps these in too; all or nothing."""
        undo: list[Run] = []
        try:
            for model in self._accelerator._models:
                # Not by another `forward`: a copy of the model would then run the forward of this one.
                register = partial(model.register_forward_pre_hook, prepend=True)
                undo.append(hook(register, getattr(model, "_forward_pre_hooks", {}), self.begin_forward))
                register = partial(model.register_forward_hook, always_call=True)
                undo.append(hook(register, getattr(model, "_forward_hooks", {}), self.end_forward))
            for optimizer in self._accelerator._optimizers:
                swaps = [*swaps, *put(self, optimizer, "step", self.optimizer_step)]
            swap_in(swaps)
        except BaseException:
            for remove in reversed(undo):
                remove()
            raise

    def take_prepared(self) -> None:
        """Follows what has been prepared since; a step that an earlier model has left open is over."""
        try:
            if any(reporter_of(optimizer.step) is not self for optimizer in self._accelerator._optimizers):
                self._end_step()
            self.take([])
        except Exception as error:
            refuse_unknown("what the Accelerator has prepared", "a model or an optimizer", error)

    def prepared(self, prepare: Run) -> Run:
        def prepares(*arguments: Any, **named: Any) -> Any:
            result = prepare(*arguments, **named)
            self.take_prepared()
            return result

        return prepares

    def begin_forward(self, model: Any, _arguments: Any) -> None:
        import torch

        # A prepared model may be a part of another one.
        inside = self._running is not None and self._running is not model
        if inside or not (model.training and torch.is_grad_enabled()):
            return
        self._end_forward()
        if self._stepped:
            self._end_step()
        if not self.in_step:
            self._has_begun = True
            self.begin_step()
        self._running = model
        self.begin("forward")

    def end_forward(self, model: Any, _arguments: Any, _output: Any) -> None:
        if self._running is model:
            self._end_forward()

    def _end_forward(self) -> None:
        """Ends the one that runs, if one does: PyTorch calls no hook for one that Ctrl-C has interrupted."""
        if self._running is not None:
            self._running = None
            self.end()

    def backward(self, run: Run) -> Run:
        told = self.instruction("backward", run)

        def backwards(*arguments: Any, **named: Any) -> Any:
            self._end_forward()
            return told(*arguments, **named)

        return backwards

    def optimizer_step(self, run: Run) -> Run:
        told = self.instruction("optimizer_step", run)

        def stepped(*arguments: Any, **named: Any) -> Any:
            if not self._accelerator.sync_gradients:
                return run(*arguments, **named)
            self._require_forward()
            try:
                return told(*arguments, **named)
            finally:
                self._stepped += 1
                if self._stepped >= len(self._accelerator._optimizers):
                    self._end_step()

        return stepped

    def _require_forward(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            logging.getLogger("pfo_gpu").warning(
                "Accelerate is followed, but an optimizer stepped and no forward was seen; a model that torch.compile"
                " compiles after accelerator.prepare is not reported: compile it before"
            )

    def _end_step(self) -> None:
        self._end_forward()
        self._stepped = 0
        self.end_step()
