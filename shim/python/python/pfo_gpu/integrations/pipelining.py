"""The schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional, Protocol, Union

from pfo_gpu import cuda
from pfo_gpu.instruction import Name
from pfo_gpu.integrations.replicas import of_group, of_mesh
from pfo_gpu.integrations.telling import (
    Run,
    Swap,
    Telling,
    Told,
    goes_on,
    plain,
    put,
    refuse_unknown,
    report_to,
    swap_in,
    telling_of,
)
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


class Optimizer(Protocol):
    """The used part of an optimizer, or of what holds several."""

    @property
    def step(self) -> Run: ...


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
    optimizer: Optional[Optimizer] = None,
    **rank: Any,
) -> Optional[Session]:
    """Reports everything that a schedule computes on this rank to a session.

    ``schedule.step`` becomes a step, and each computation of a microbatch becomes an instruction:
    ``forward``, ``backward``, and in zero-bubble schedules ``backward_input`` and ``backward_weight``. If
    the rank has several stages, the first of them is chunk 0. Where a stage is sharded (FSDP2), the
    reduction of its gradients at the end of a step is a ``collective``. ``schedule.eval`` is not reported.

    A forward and a backward that ``ScheduleDualPipeV`` pairs run one after the other, as two instructions.
    Where a function that overlaps them is registered with the schedule, the pair is a ``forward_backward`` with
    the microbatch and the chunk of its backward: a GPU has one clock at a time.

    Followed a second time, a schedule reports once; if the first session is closed, to the new one.

    Args:
        schedule: The schedule. If it loads its order from a file, it must have done so.
        stages: The stage or stages with which it was made, if the schedule does not know them.
        session: The session; if there is none, one is opened with what the stages, the mesh and the
            schedule say: the ranks and their numbers, the GPU and the number of microbatches. It takes the place
            of the rank's former one: where several schedules run, give the session of the first to the others.
        mesh: The ``DeviceMesh`` of all ranks, whose dimensions ``pp`` and ``tp`` are those of a pipeline and
            of tensor parallelism; every other one is data-parallel. Without a mesh, every pipeline of the
            job counts as a data-parallel replica.
        optimizer: The optimizer, whose ``step`` becomes an ``optimizer_step``, and the end of the step. Without
            it, a step ends when ``schedule.step`` does.
        rank: Further arguments of the session, which have precedence.

    Returns:
        The session, which lives as long as the schedule; None if the schedule cannot be followed.
    """
    name = type(schedule).__name__
    former = telling_of(getattr(schedule, "step", None))
    if former is not None and optimizer is not None and telling_of(optimizer.step) is None:
        logging.getLogger("pfo_gpu").warning(
            "%s was followed without its optimizer, which is not reported now either; give it to the first follow",
            name,
        )
    if former is not None and goes_on(former, session):
        return former.session
    try:
        own = _own_stages(schedule, stages)
        described = {**_rank(schedule, own[0], mesh), **rank} if session is None else {}
    except Exception as error:
        refuse_unknown(name, "a schedule with stages", error)
        return None
    return report_to(
        session,
        described,
        former,
        lambda opened: swap_in(_swaps(_telling(name, opened, own, optimizer), schedule, own, optimizer)),
        partial(refuse_unknown, name, "a schedule with stages"),
    )


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


def _telling(name: str, session: Session, stages: list[Stage], optimizer: Optional[Optimizer]) -> Telling:
    """That of another schedule of the session, if they share something: either of them may run it."""
    steps = [] if optimizer is None else [optimizer.step]
    for run in [*(stage.forward_one_chunk for stage in stages), *steps]:
        former = telling_of(run)
        if former is not None and former.session is session:
            return former
    return Telling(name, session, "torch")


def _swaps(telling: Telling, schedule: Any, stages: list[Stage], optimizer: Optional[Optimizer]) -> list[Swap]:
    swaps: list[Swap] = []
    for chunk, stage in enumerate(stages):
        for method, name in _NAMES.items():
            swaps += put(telling, stage, method, partial(_told, telling, name, chunk))
        if hasattr(getattr(stage, "submod", None), "set_requires_gradient_sync"):
            for method in _REDUCTIONS:
                if hasattr(stage, method):
                    swaps += put(telling, stage, method, partial(_reduced, telling, chunk))
    swaps += _overlaps(telling, schedule, stages)
    if optimizer is not None:
        swaps += put(telling, optimizer, "step", partial(_stepped, telling))
    if hasattr(schedule, "eval"):
        swaps += put(telling, schedule, "eval", telling.evaluation)
    return [*swaps, *put(telling, schedule, "step", partial(telling.step, goes_on=optimizer is not None))]


# By the names that PyTorch gives its kinds of actions.
_OVERLAP = "OVERLAP_F_B"


def _overlaps(telling: Telling, schedule: Any, stages: list[Stage]) -> list[Swap]:
    """What reports pairs that a registered function overlaps, be it registered already or later."""
    functions = getattr(schedule, "_comp_type_to_function_map", None)
    if functions is None or not hasattr(schedule, "register_custom_function"):
        return []
    chunks = {stage.stage_index: chunk for chunk, stage in enumerate(stages)}

    def told(kind: Any, run: Run) -> Run:
        if getattr(kind, "name", None) != _OVERLAP:
            return run
        run = plain(run)
        return Told(run, telling, _overlapped(telling, chunks, run))

    def registering(register: Run) -> Run:
        def registered(computation_type: Any, custom_function: Run) -> Any:
            return register(computation_type, told(computation_type, custom_function))

        return registered

    # PyTorch's own looks the functions up in the schedule, whenever it is called.
    known = {kind: told(kind, run) for kind, run in functions.items()}
    return [
        (schedule, "_comp_type_to_function_map", known),
        *put(telling, schedule, "register_custom_function", registering),
    ]


def _overlapped(telling: Telling, chunks: dict[int, int], run: Run) -> Run:
    def overlapped(action: Any, *arguments: Any, **named: Any) -> Any:
        backward = action.sub_actions[-1]
        telling.begin("forward_backward", backward.microbatch_index, chunks[backward.stage_index])
        try:
            return run(action, *arguments, **named)
        finally:
            telling.end()

    return overlapped


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


# Of a sharded stage: at once, in which newer releases call the other one, or after it was started.
_REDUCTIONS = ("perform_reduce_grad", "wait_for_gradient_reduction")


def _reduced(telling: Telling, chunk: int, run: Run) -> Run:
    told = telling.instruction("collective", run, chunk)

    def reduced(*arguments: Any, **named: Any) -> Any:
        return (run if telling.in_instruction else told)(*arguments, **named)

    return reduced


def _stepped(telling: Telling, run: Run) -> Run:
    told = telling.instruction("optimizer_step", run)

    def stepped(*arguments: Any, **named: Any) -> Any:
        try:
            return told(*arguments, **named)
        finally:
            telling.end_step()

    return stepped


def _told(telling: Telling, name: Callable[..., Name], chunk: int, run: Run) -> Run:
    # What follows the microbatch differs between releases of PyTorch, and is passed on as it is.
    def told(microbatch: int, *arguments: Any, **named: Any) -> Any:
        # Part of a pair, which may run it on another thread.
        if telling.in_instruction:
            return run(microbatch, *arguments, **named)
        telling.begin(name(*arguments, **named), microbatch, chunk)
        try:
            return run(microbatch, *arguments, **named)
        finally:
            telling.end()

    return told
