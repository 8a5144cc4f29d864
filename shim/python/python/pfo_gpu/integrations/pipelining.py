"""The schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol, Union

from pfo_gpu import cuda
from pfo_gpu.instruction import Name
from pfo_gpu.integrations.replicas import of_group, of_mesh
from pfo_gpu.integrations.telling import Run, Telling, goes_on, refuse, refuse_unknown, swap_in, telling_of
from pfo_gpu.session import Session


class Stage(Protocol):
    """The used part of a ``PipelineStage``."""

    @property
    def stage_index(self) -> int: ...
    @property
    def group_rank(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def forward_one_chunk(self) -> Run: ...
    @property
    def backward_one_chunk(self) -> Run: ...
    @property
    def backward_weight_one_chunk(self) -> Run: ...


class Schedule(Protocol):
    """The used part of a schedule."""

    @property
    def step(self) -> Run: ...


def follow(
    schedule: Schedule,
    stages: Union[Stage, Sequence[Stage], None] = None,
    session: Optional[Session] = None,
    *,
    mesh: Any = None,
    **rank: Any,
) -> Optional[Session]:
    """Reports everything that a schedule computes on this rank to a session.

    ``schedule.step`` becomes a step, and each computation of a microbatch becomes an instruction:
    ``forward``, ``backward``, and in zero-bubble schedules ``backward_input`` and ``backward_weight``. If
    the rank has several stages, the first of them is chunk 0. ``schedule.eval`` is not reported.

    Schedules that overlap a forward with a backward, such as ``ScheduleDualPipeV``, are not followed: a
    GPU has one clock at a time.

    Followed a second time, a schedule reports once; if the first session is closed, to the new one.

    Args:
        schedule: The schedule. If it loads its order from a file, it must have done so.
        stages: The stage or stages with which it was made, if the schedule does not know them.
        session: The session; if there is none, one is opened with what the stages, the mesh and the
            schedule say: the ranks and their numbers, the GPU and the number of microbatches.
        mesh: The ``DeviceMesh`` of all ranks, whose dimensions ``pp`` and ``tp`` are those of a pipeline and
            of tensor parallelism; every other one is data-parallel. Without a mesh, every pipeline of the
            job counts as a data-parallel replica.
        rank: Further arguments of the session, which have precedence.

    Returns:
        The session, which lives as long as the schedule; None if the schedule cannot be followed.
    """
    name = type(schedule).__name__
    former = telling_of(getattr(schedule, "step", None))
    if former is not None and goes_on(former, session):
        return former.session
    try:
        overlaps = _overlaps(schedule)
        own = _own_stages(schedule, stages)
        described = {**_rank(schedule, own[0], mesh), **rank} if session is None else {}
    except Exception as error:
        refuse_unknown(name, "a schedule with stages", error)
        return None
    if overlaps:
        refuse(
            name,
            f"it runs a forward and a backward at a time, first in {overlaps[0]!r}, and a GPU has one"
            " clock at a time; use a schedule without overlaps",
        )
        return None
    opened = session is None
    session = Session(**described) if session is None else session
    if former is not None:
        former.session = session
        return session
    telling = Telling(name, session)
    try:
        swap_in(_swaps(telling, schedule, own))
    except Exception as error:
        if opened:
            session.close()
        refuse_unknown(name, "a schedule with stages", error)
        return None
    return session


def _own_stages(schedule: Any, stages: Union[Stage, Sequence[Stage], None]) -> list[Stage]:
    if stages is None:
        stages = schedule._stages if hasattr(schedule, "_stages") else schedule._stage
    own = sorted(stages if isinstance(stages, Sequence) else [stages], key=lambda stage: stage.stage_index)
    if not own:
        raise ValueError("it has no stage on this rank")
    return own


def _rank(schedule: Any, stage: Any, mesh: Any) -> dict[str, Any]:
    microbatches = getattr(schedule, "_n_microbatches", None)
    return {
        "pp_rank": stage.group_rank,
        "pp_degree": stage.group_size,
        "gpu": cuda.of_framework(getattr(stage, "device", None)),
        "num_microbatches": microbatches if isinstance(microbatches, int) else None,
        **(of_group(getattr(stage, "group", None)) if mesh is None else of_mesh(mesh)),
    }


def _overlaps(schedule: Schedule) -> list[Any]:
    """The actions of a schedule that are several at a time."""
    orders = getattr(schedule, "pipeline_order_with_comms", None) or {}
    return [
        action for order in orders.values() for action in order if getattr(action, "sub_actions", None)
    ]


def _swaps(telling: Telling, schedule: Any, stages: list[Stage]) -> list[tuple[Any, str, Run]]:
    swaps: list[tuple[Any, str, Run]] = []
    for chunk, stage in enumerate(stages):
        for method, name in _NAMES.items():
            swaps.append((stage, method, _told(telling, name, getattr(stage, method), chunk)))
    if hasattr(schedule, "eval"):
        swaps.append((schedule, "eval", telling.evaluation(schedule.eval)))
    return [*swaps, (schedule, "step", telling.step(schedule.step))]


def _forward(*_arguments: Any, **_named: Any) -> Name:
    return "forward"


def _backward(_loss: Any = None, full_backward: bool = True, *_more: Any, **_named: Any) -> Name:
    return "backward" if full_backward else "backward_input"


def _backward_weight(*_arguments: Any, **_named: Any) -> Name:
    return "backward_weight"


_NAMES: dict[str, Callable[..., Name]] = {
    "forward_one_chunk": _forward,
    "backward_one_chunk": _backward,
    "backward_weight_one_chunk": _backward_weight,
}


def _told(telling: Telling, name: Callable[..., Name], run: Run, chunk: int) -> Run:
    # What follows the microbatch differs between releases of PyTorch, and is passed on as it is.
    @functools.wraps(run)
    def told(microbatch: int, *arguments: Any, **named: Any) -> Any:
        telling.begin(name(*arguments, **named), microbatch, chunk)
        try:
            return run(microbatch, *arguments, **named)
        finally:
            telling.end()

    return told
