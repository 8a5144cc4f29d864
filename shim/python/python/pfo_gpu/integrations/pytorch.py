"""A training loop in plain PyTorch: one GPU, DDP or FSDP, without a pipeline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

from pfo_gpu import cuda
from pfo_gpu.integrations.replicas import of_mesh
from pfo_gpu.integrations.reporting import (
    Reporter,
    Run,
    Swap,
    goes_on,
    hook,
    put,
    refuse_unknown,
    report_to,
    reporter_of,
    swap_in,
)
from pfo_gpu.job import initialized_distributed
from pfo_gpu.session import Session


def follow(
    model: Any,
    optimizer: Any,
    session: Optional[Session] = None,
    *,
    mesh: Any = None,
    **rank: Any,
) -> Optional[Session]:
    """Reports every forward, backward and optimizer step of a training loop to a session.

    A step begins with the first forward of the model in training, and contains accumulated
    microbatches. It ends when as many optimizer steps have run as there are optimizers, or with the
    first forward after one: if two optimizers take turns, as those of a GAN do, an iteration is two
    steps. The ``forward`` is the call of the model. The ``backward`` begins when the gradient of
    the model's output is computed, and ends with autograd's last work. Both contain what the model
    waits for inside them, as FSDP for parameters. A model that is evaluated, that runs without
    gradients, or that ``torch.compile`` compiles after this call, is not reported. A second call
    for the same optimizer changes nothing, unless it gives another session or the first one is
    closed: the loop then reports to the new one.

    Args:
        model: The model that the loop calls, after ``DistributedDataParallel``, ``fully_shard`` or
            ``torch.compile``.
        optimizer: Its optimizer, or a list or tuple of several.
        session: The session; by default, one is opened for the rank of ``torch.distributed`` and
            the GPU of the model.
        mesh: The ``DeviceMesh`` of all ranks, whose dimension ``tp`` is that of tensor parallelism.
            Without a mesh, every rank counts as a data-parallel replica.
        rank: Further arguments of the opened session, which have precedence: ``num_microbatches``
            if a step accumulates (default 1), and ``first_step`` if training continues.

    Returns:
        The session, which lives as long as the model; None if the loop cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    former = reporter_of(getattr(optimizers[0], "step", None)) if optimizers else None
    if former is not None and goes_on(former, session):
        return former.session
    refused = partial(refuse_unknown, type(model).__name__, "a module with an optimizer")
    try:
        if not optimizers:
            raise ValueError("there is no optimizer")
        described = {**rank_of(model, mesh), **rank} if session is None else {}
    except Exception as error:
        refused(error)
        return None

    def swap(opened: Session) -> None:
        Loop("The training loop", opened, "torch").take(model, optimizers)

    return report_to(session, described, former, swap, refused)


def rank_of(model: Any, mesh: Any = None) -> dict[str, Any]:
    distributed = initialized_distributed()
    replica = {} if distributed is None else {
        "dp_rank": int(distributed.get_rank()),
        "dp_degree": int(distributed.get_world_size()),
    }
    weight = next(iter(model.parameters()), None)
    return {
        "num_microbatches": 1,
        "gpu": cuda.of_framework(getattr(weight, "device", None)),
        **(replica if mesh is None else of_mesh(mesh)),
    }


class Loop(Reporter):
    """Reports the calls of a model, their backwards and the steps of its optimizers."""

    _stepped = 0
    _of_all = 0
    _has_begun = False
    _in_backward = False
    _runs: Optional[Any] = None

    def take(self, model: Any, optimizers: Sequence[Any], swaps: Sequence[Swap] = (), ends_step: bool = True) -> None:
        """Follows a model and its optimizers, and applies the swaps; all or nothing. Without
        ``ends_step``, the caller ends steps."""
        self._of_all = len(optimizers) if ends_step else 0
        undo: list[Run] = []
        try:
            # Not by another `forward`: a copy of the model would then run the forward of this one.
            register = partial(model.register_forward_pre_hook, prepend=True)
            undo.append(hook(register, getattr(model, "_forward_pre_hooks", {}), self._begin_forward))
            register = partial(model.register_forward_hook, always_call=True)
            undo.append(hook(register, getattr(model, "_forward_hooks", {}), self._end_forward))
            stepped = [swap for one in optimizers for swap in put(self, one, "step", self._optimizer_step)]
            swap_in([*swaps, *stepped])
        except BaseException:
            for remove in reversed(undo):
                remove()
            raise

    def _begin_forward(self, model: Any, _arguments: Any) -> None:
        import torch

        if self.silent or not (model.training and torch.is_grad_enabled()) or _in_autograd():
            return
        self._end_interrupted()
        if self._of_all:
            if self._stepped:
                self._end_loop_step()
            if not self.in_step:
                self._has_begun = True
                self.begin_step()
        self._runs = model
        self.begin("forward")

    def _end_interrupted(self) -> None:
        """Ends an instruction that has failed or was interrupted, for which PyTorch calls no
        hook."""
        if self._in_backward or self._runs is not None:
            self._in_backward, self._runs = False, None
            self.end()

    def _end_forward(self, model: Any, _arguments: Any, output: Any) -> None:
        if self._runs is not model:
            return
        self._runs = None
        self.end()
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._begin_backward)

    def _begin_backward(self, _gradient: Any) -> None:
        import torch

        # Of several outputs, the first gradient begins it.
        if self._in_backward or not self.in_step:
            return
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        except Exception as error:
            self._report_once("backward", "a backward of %s is not reported: %r", self._framework, error)
            return
        self._in_backward = True
        self.begin("backward")

    def _end_backward(self) -> None:
        self._in_backward = False
        self.end()

    def _optimizer_step(self, run: Run) -> Run:
        reported = self.instruction("optimizer_step", run)

        def stepped(*arguments: Any, **named: Any) -> Any:
            self._end_interrupted()
            if self._of_all and not self._has_begun:
                self._has_begun = True
                logging.getLogger("pfo_gpu").warning(
                    "%s is followed, but an optimizer stepped and no forward was seen; a model that torch.compile"
                    " compiles after follow is not reported: compile it before",
                    self._framework,
                )
            try:
                return reported(*arguments, **named)
            finally:
                self._stepped += 1
                if self._of_all and self._stepped >= self._of_all:
                    self._end_loop_step()

        return stepped

    def _end_loop_step(self) -> None:
        self._stepped = 0
        self.end_step()


def _in_autograd() -> bool:
    """Whether autograd runs: a forward is then the recomputation inside a backward."""
    import torch

    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


# An output that holds itself must not be looked through for ever.
_DEEPEST = 4


def _tensors(output: Any, depth: int = 0) -> list[Any]:
    """The tensors of what a model returns."""
    if hasattr(output, "register_hook"):
        return [output]
    if depth == _DEEPEST:
        return []
    parts = output.values() if hasattr(output, "values") else output
    if isinstance(parts, (str, bytes)) or not hasattr(parts, "__iter__"):
        parts = vars(output).values() if hasattr(output, "__dict__") else ()
    return [tensor for part in parts for tensor in _tensors(part, depth + 1)]
