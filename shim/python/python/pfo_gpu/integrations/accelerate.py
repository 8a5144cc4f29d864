"""Hugging Face Accelerate."""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.integrations.replicas import of_mesh
from pfo_gpu.integrations.telling import (
    Run,
    Telling,
    goes_on,
    refuse,
    refuse_unknown,
    report_to,
    swap_in,
    telling_of,
)
from pfo_gpu.session import Session


def follow(accelerator: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward, backward and optimizer's step of a training with an ``Accelerator``.

    A step begins with the first forward of a model in training, and ends when the prepared optimizers have
    stepped; accumulated microbatches belong to it. ``accelerator.backward`` is the ``backward``. Models that are
    evaluated, or that run without gradients, are not reported. Followed a second time, an accelerator reports
    once; if the first session is closed, to the new one.

    Args:
        accelerator: The accelerator, after ``prepare`` has returned models and optimizers.
        session: The session; if there is none, one is opened with rank and GPU of the accelerator.
        rank: Further arguments of the session, which have precedence.

    Returns:
        The session, which lives as long as the accelerator; None if it cannot be followed.
    """
    former = telling_of(getattr(accelerator, "backward", None))
    if former is not None and goes_on(former, session):
        return former.session
    try:
        reason = _reason_against(accelerator)
        models, optimizers = list(accelerator._models), list(accelerator._optimizers)
        described = {**_rank(accelerator), **rank} if session is None else {}
    except Exception as error:
        refuse_unknown(type(accelerator).__name__, "an Accelerator", error)
        return None
    if reason is not None:
        refuse("Accelerate", reason)
        return None

    def swap(opened: Session) -> None:
        steps = _Steps(Telling("Accelerate", opened, "accelerate"), accelerator, len(optimizers))
        hooks: list[Any] = []
        try:
            for model in models:
                # Not by another `forward`: a copy of the model would then run the forward of this one.
                hooks.append(model.register_forward_pre_hook(steps.begin_forward, prepend=True))
                hooks.append(model.register_forward_hook(steps.end_forward, always_call=True))
            swap_in(
                [(optimizer, "step", steps.optimizer_step(optimizer)) for optimizer in optimizers]
                + [(accelerator, "backward", steps.telling.instruction("backward", accelerator.backward))]
            )
        except BaseException:
            for hook in hooks:
                hook.remove()
            raise

    refused = functools.partial(refuse_unknown, type(accelerator).__name__, "an Accelerator")
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


class _Steps:
    """Where one step ends and the next one begins, which no call of Accelerate says."""

    def __init__(self, telling: Telling, accelerator: Any, optimizers: int) -> None:
        self.telling = telling
        self._accelerator = accelerator
        self._optimizers = optimizers
        self._stepped = 0
        self._running: Optional[Any] = None

    def begin_forward(self, model: Any, _arguments: Any) -> None:
        import torch

        # A prepared model may be a part of another one.
        if self._running is not None or not (model.training and torch.is_grad_enabled()):
            return
        if self._stepped:
            self._end_step()
        if not self.telling.in_step:
            self.telling.begin_step()
        self._running = model
        self.telling.begin("forward")

    def end_forward(self, model: Any, _arguments: Any, _output: Any) -> None:
        if self._running is model:
            self._running = None
            self.telling.end()

    def optimizer_step(self, optimizer: Any) -> Run:
        run = optimizer.step
        told = self.telling.instruction("optimizer_step", run)

        @functools.wraps(run)
        def stepped(_optimizer: Any, *arguments: Any, **named: Any) -> Any:
            if not self._accelerator.sync_gradients:
                return run(*arguments, **named)
            try:
                return told(*arguments, **named)
            finally:
                self._stepped += 1
                if self._stepped == self._optimizers:
                    self._end_step()

        # Schedulers of learning rates take the function out of the method.
        return MethodType(stepped, optimizer)

    def _end_step(self) -> None:
        self._stepped = 0
        self.telling.end_step()
