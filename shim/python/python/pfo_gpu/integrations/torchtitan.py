"""torchtitan's trainer, whose pipelines are schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

from typing import Any, Optional

from pfo_gpu.integrations import pipelining
from pfo_gpu.integrations.reporting import refuse, refuse_unknown
from pfo_gpu.session import Session


def follow(trainer: Any, session: Optional[Session] = None, **rank: Any) -> Optional[Session]:
    """Reports every forward and backward of a torchtitan pipeline to a session.

    As :func:`pfo_gpu.integrations.pipelining.follow` for the trainer's schedule, with the replica and shard of
    the trainer's meshes, and the trainer's step. Each run of the schedule is a step: with
    gradient accumulation, an optimizer's step has several.

    Args:
        trainer: torchtitan's ``Trainer``, after its creation and before ``train()``.
        session: The session; if there is none, one is opened.
        rank: Further arguments of the session, which have precedence.

    Returns:
        The session, which lives as long as the schedule; None if the trainer cannot be followed.
    """
    schedule = getattr(trainer, "pp_schedule", None)
    if schedule is None:
        refuse(
            "torchtitan",
            "this trainer has no pipeline, in which alone a GPU waits for another stage; set"
            " pipeline_parallel_degree",
        )
        return None
    try:
        described = {**_replica(trainer.parallel_dims), "first_step": trainer.step, **rank}
    except Exception as error:
        refuse_unknown("torchtitan", "a torchtitan Trainer", error)
        return None
    return pipelining.follow(schedule, session=session, **described)


def _replica(dims: Any) -> dict[str, int]:
    """Replica and shard: ``batch`` is all of data parallelism, to which context parallelism counts too."""
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
