"""torchtitan's trainer. Its pipelines are schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

from pfo_gpu.integrations import pipelining
from pfo_gpu.integrations.pytorch import Loop, rank_of
from pfo_gpu.integrations.reporting import Run, goes_on, put, refuse_unknown, report_to, reporter_of, swap_in
from pfo_gpu.session import Session


def follow(trainer: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward and backward of a torchtitan trainer to a session.

    With a pipeline, it calls :func:`pfo_gpu.integrations.pipelining.follow` for the trainer's
    schedule, with replica and shard of the trainer's meshes, and the trainer's step number. Each
    run of the schedule is a step: with gradient accumulation, the optimizer steps once in several
    of these steps.

    Without a pipeline, the job is one stage. ``train_step`` is a step, which begins with the
    ``load`` of its batches and ends after its ``optimizer_step``. If torchtitan runs forward and
    backward as one CUDA graph, they are one ``forward_backward``.

    Args:
        trainer: torchtitan's ``Trainer``, after its creation and before ``train()``.
        session: The session; by default, one is opened.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the trainer; None if the trainer cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    schedule = getattr(trainer, "pp_schedule", None)
    if schedule is None:
        return _follow_loop(trainer, session, rank)
    try:
        described = {**_replica(trainer.parallel_dims), "first_step": trainer.step, **rank}
    except Exception as error:
        refuse_unknown("torchtitan", "a torchtitan Trainer", error)
        return None
    return pipelining.follow(schedule, session=session, **described)


def _follow_loop(trainer: Any, session: Optional[Session], rank: dict[str, Any]) -> Optional[Session]:
    former = reporter_of(getattr(trainer, "train_step", None))
    if former is not None and goes_on(former, session):
        return former.session
    refused = partial(refuse_unknown, "torchtitan", "a torchtitan Trainer")
    try:
        (model,) = trainer.model_parts
        described = {
            **rank_of(model),
            **_replica(trainer.parallel_dims),
            "first_step": trainer.step,
            "num_microbatches": trainer.gradient_accumulation_steps,
            **rank,
        }
        has_graph = not getattr(getattr(trainer.config, "training", None), "disable_cuda_graphs", True)
    except Exception as error:
        refused(error)
        return None

    def swap(opened: Session) -> None:
        loop = Loop("torchtitan", opened, "torchtitan")
        swaps = [
            *put(loop, trainer, "train_step", partial(_step, loop)),
            *put(loop, trainer, "forward_backward_step", partial(_passes, loop, has_graph)),
        ]
        if has_graph:
            swap_in([*swaps, *put(loop, trainer.optimizers, "step", partial(loop.instruction, "optimizer_step"))])
        else:
            loop.take(model, [trainer.optimizers], swaps, ends_step=False)

    return report_to(session, described if session is None else {}, former, swap, refused)


def _step(loop: Loop, run: Run) -> Run:
    def loads_first(*arguments: Any, **named: Any) -> Any:
        loop.begin("load")
        return run(*arguments, **named)

    return loop.step(loads_first)


def _passes(loop: Loop, has_graph: bool, run: Run) -> Run:
    computes = loop.instruction("forward_backward", run) if has_graph else run

    def passes(*arguments: Any, **named: Any) -> Any:
        # The batches are there.
        loop.end()
        return computes(*arguments, **named)

    return passes


def _replica(dims: Any) -> dict[str, int]:
    """Replica and shard. The mesh ``batch`` has all of data parallelism; ranks of context
    parallelism count as replicas, too."""
    batch, batches = _place(dims, "batch")
    context, contexts = _place(dims, "cp")
    shard, shards = _place(dims, "tp")
    return {
        "dp_rank": batch * contexts + context,
        "dp_degree": batches * contexts,
        "tp_rank": shard,
        "tp_degree": shards,
    }


def _place(dims: Any, name: str) -> tuple[int, int]:
    mesh = dims.get_optional_mesh(name)
    return (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
