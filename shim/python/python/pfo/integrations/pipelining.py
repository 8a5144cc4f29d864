"""The schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Union

from pfo.integrations.telling import Run, Telling, refuse
from pfo.session import Session


class Stage(Protocol):
    """The used part of a ``PipelineStage``."""

    stage_index: int
    group_rank: int
    group_size: int
    forward_one_chunk: Run
    backward_one_chunk: Run
    backward_weight_one_chunk: Run


class Schedule(Protocol):
    """The used part of a schedule."""

    step: Run


def follow(
    schedule: Schedule,
    stages: Union[Stage, Sequence[Stage]],
    session: Optional[Session] = None,
    **rank: Any,
) -> Optional[Session]:
    """Reports everything that a schedule computes on this rank to a session.

    ``schedule.step`` becomes a step, and each computation of a microbatch becomes an instruction:
    ``forward``, ``backward``, and in zero-bubble schedules ``backward_input`` and ``backward_weight``. If
    the rank has several stages, the first of them is chunk 0. ``schedule.eval`` is not reported.

    Schedules that overlap a forward with a backward, such as ``ScheduleDualPipeV``, are not followed: a
    GPU has one clock at a time.

    Args:
        schedule: The schedule. If it loads its order from a file, it must have done so.
        stages: The stage or stages with which it was made.
        session: The session; if there is none, one is opened with the stage's rank and the size of its
            group as ``pp_rank`` and ``pp_degree``.
        rank: Further arguments of the session, such as ``dp_rank`` and ``dp_degree``.

    Returns:
        The session, which lives as long as the schedule; None if the schedule cannot be followed.
    """
    overlaps = _overlaps(schedule)
    if overlaps:
        refuse(
            type(schedule).__name__,
            f"it runs a forward and a backward at a time, first in {overlaps[0]!r}, and a GPU has one"
            " clock at a time; use a schedule without overlaps",
        )
        return None
    own = sorted(stages if isinstance(stages, Sequence) else [stages], key=_stage_index)
    if session is None:
        session = Session(pp_rank=own[0].group_rank, pp_degree=own[0].group_size, **rank)
    telling = Telling(session)
    for chunk, stage in enumerate(own):
        _follow_stage(telling, stage, chunk)
    schedule.step = telling.step(schedule.step)
    if hasattr(schedule, "eval"):
        schedule.eval = telling.evaluation(schedule.eval)
    return session


def _stage_index(stage: Stage) -> int:
    return stage.stage_index


def _overlaps(schedule: Schedule) -> list[Any]:
    """The actions of a schedule that are several at a time."""
    orders = getattr(schedule, "pipeline_order_with_comms", None) or {}
    return [
        action for order in orders.values() for action in order if getattr(action, "sub_actions", None)
    ]


def _follow_stage(telling: Telling, stage: Stage, chunk: int) -> None:
    stage.forward_one_chunk = _told(telling, _forward, stage.forward_one_chunk, chunk)
    stage.backward_one_chunk = _told(telling, _backward, stage.backward_one_chunk, chunk)
    stage.backward_weight_one_chunk = _told(
        telling, _backward_weight, stage.backward_weight_one_chunk, chunk
    )


def _forward(*_arguments: Any, **_named: Any) -> str:
    return "forward"


def _backward(_loss: Any = None, full_backward: bool = True, *_more: Any, **_named: Any) -> str:
    return "backward" if full_backward else "backward_input"


def _backward_weight(*_arguments: Any, **_named: Any) -> str:
    return "backward_weight"


def _told(telling: Telling, name: Callable[..., str], run: Run, chunk: int) -> Run:
    # What follows the microbatch differs between releases of PyTorch, and is passed on as it is.
    @functools.wraps(run)
    def told(microbatch: int, *arguments: Any, **named: Any) -> Any:
        telling.begin(name(*arguments, **named), microbatch, chunk)
        try:
            return run(microbatch, *arguments, **named)
        finally:
            telling.end()

    return told
