"""The schedules of ``torch.distributed.pipelining``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Optional, Protocol, Union

from pfo_gpu import _native, cuda
from pfo_gpu.instruction import Name
from pfo_gpu.integrations.accounts import Account, Expected
from pfo_gpu.integrations.replicas import of_group, of_mesh
from pfo_gpu.integrations.reporting import (
    Run,
    Swap,
    Reporter,
    Reported,
    goes_on,
    plain,
    put,
    refuse_unknown,
    report_to,
    swap_in,
    reporter_of,
)
from pfo_gpu.session import Session


class Stage(Protocol):
    """The part of a ``PipelineStage`` that ``follow`` uses."""

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
    """The part of an optimizer, or of a container of several, that ``follow`` uses."""

    @property
    def step(self) -> Run: ...


class Schedule(Protocol):
    """The part of a schedule that ``follow`` uses."""

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
    ``forward``, ``backward``, and in zero-bubble schedules ``backward_input`` and
    ``backward_weight``. If the rank has several stages, the first of them is chunk 0. If a stage is
    sharded (FSDP2), the reduction of its gradients at the end of a step is a ``collective``.
    ``schedule.eval`` is not reported. A direct call of ``schedule._step_microbatches`` is a step,
    too.

    A forward and a backward that ``ScheduleDualPipeV`` pairs run one after the other, as two
    instructions. The trainer's own functions (``schedule.register_custom_function``) are reported
    as the action that they run; a function that overlaps a pair is a ``forward_backward`` with the
    microbatch and the chunk of its backward, because a GPU has one clock at a time.

    If a step does not report every forward and backward of its microbatches and stages once, one
    warning names the missing ones.

    A second call for the same schedule changes nothing, unless it gives another session or the
    first one is closed: the schedule then reports to the new one.

    Args:
        schedule: The schedule, or an object whose attribute ``schedule`` is one. A schedule that
            loads its order from a file must have loaded it.
        stages: The stage or stages with which it was made, if the schedule does not know them.
        session: The session; by default, one is opened with ranks, degrees, GPU and number of
            microbatches of the stages, the mesh and the schedule. It replaces an earlier session of
            the rank: if several schedules run, give the session of the first to the others.
        mesh: The ``DeviceMesh`` of all ranks, whose dimensions ``pp`` and ``tp`` are those of the
            pipeline and of tensor parallelism; every other one is data-parallel. Without a mesh,
            every pipeline of the job counts as a data-parallel replica.
        optimizer: The optimizer, whose ``step`` becomes an ``optimizer_step`` and ends the step.
            Without it, a step ends when ``schedule.step`` does.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the schedule; None if the schedule cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    schedule = _inner(schedule)
    name = type(schedule).__name__
    former = reporter_of(getattr(schedule, "step", None))
    if former is not None and optimizer is not None and reporter_of(optimizer.step) is None:
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
        lambda opened: swap_in(_swaps(_reporter(name, opened, own, optimizer), schedule, own, optimizer)),
        partial(refuse_unknown, name, "a schedule with stages"),
    )


def _inner(schedule: Any) -> Any:
    """The schedule that another object runs, as torchtitan's graph runtime does."""
    for _ in range(_DEEPEST):
        if hasattr(schedule, "_stages") or hasattr(schedule, "_stage") or not hasattr(schedule, "schedule"):
            break
        schedule = schedule.schedule
    return schedule


# An object that is its own `schedule` must not be looked into for ever.
_DEEPEST = 8


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


def _reporter(name: str, session: Session, stages: list[Stage], optimizer: Optional[Optimizer]) -> Reporter:
    """The reporter of another schedule of the session that shares a stage or the optimizer, else a
    new one."""
    steps = [] if optimizer is None else [optimizer.step]
    for run in [*(stage.forward_one_chunk for stage in stages), *steps]:
        former = reporter_of(run)
        if former is not None and former.session is session:
            return former
    reporter = Reporter(name, session, "torch")
    reporter.says_outside = True
    return reporter


def _swaps(reporter: Reporter, schedule: Any, stages: list[Stage], optimizer: Optional[Optimizer]) -> list[Swap]:
    swaps: list[Swap] = []
    for chunk, stage in enumerate(stages):
        for method, (name, partial_name) in _METHODS.items():
            swaps += put(reporter, stage, method, partial(_computed, reporter, name, partial_name, chunk))
        if hasattr(getattr(stage, "submod", None), "set_requires_gradient_sync"):
            for method in _REDUCTIONS:
                if hasattr(stage, method):
                    swaps += put(reporter, stage, method, partial(reporter.instruction, "collective", chunk=chunk))
    swaps += _custom_functions(reporter, schedule, stages)
    if optimizer is not None:
        swaps += put(reporter, optimizer, "step", partial(_stepped, reporter))
    if hasattr(schedule, "eval"):
        swaps += put(reporter, schedule, "eval", reporter.evaluation)
    step = partial(_step, reporter, schedule, stages, goes_on=optimizer is not None)
    # `step` calls the other one, which some trainers call themselves.
    for method in ("_step_microbatches", "step"):
        if hasattr(schedule, method):
            swaps += put(reporter, schedule, method, step)
    return swaps


def _step(reporter: Reporter, schedule: Any, stages: list[Stage], run: Run, goes_on: bool) -> Run:
    trains = getattr(schedule, "_has_backward", True)

    def is_training() -> bool:
        # A schedule that only evaluates, as one without a loss does, is followed as what it is.
        return not trains or getattr(schedule, "_has_backward", True)

    def expected() -> Optional[Expected]:
        microbatches = getattr(schedule, "_n_microbatches", None)
        if not isinstance(microbatches, int):
            return None
        each = microbatches * len(stages)
        return Expected(each, each if getattr(schedule, "_has_backward", True) else 0)

    account = Account(expected, partial(_reason, reporter, stages))
    return reporter.step(run, goes_on=goes_on, is_training=is_training, account=account)


def _reason(reporter: Reporter, stages: list[Stage]) -> Optional[str]:
    replaced = [
        f"{method} of stage {stage.stage_index}"
        for stage in stages
        for method in _METHODS
        if reporter_of(getattr(stage, method, None)) is not reporter
    ]
    if not replaced:
        return None
    return f"Since follow was called, something has replaced {', '.join(replaced)}: call follow afterwards."


# By the names that PyTorch gives the kinds of actions for which a trainer may register a function.
_CUSTOM: dict[str, Name] = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "backward_input",
    "BACKWARD_WEIGHT": "backward_weight",
    "OVERLAP_F_B": "forward_backward",
    "UNSHARD": "collective",
    "RESHARD": "collective",
    "REDUCE_GRAD": "collective",
    "WAIT_REDUCE_GRAD": "collective",
}


def _custom_functions(reporter: Reporter, schedule: Any, stages: list[Stage]) -> list[Swap]:
    """Swaps that report the functions that a trainer has registered, or registers later."""
    functions = getattr(schedule, "_comp_type_to_function_map", None)
    if functions is None or not hasattr(schedule, "register_custom_function"):
        return []
    chunks = {stage.stage_index: chunk for chunk, stage in enumerate(stages)}

    def reported(kind: Any, run: Run) -> Run:
        name = _CUSTOM.get(str(getattr(kind, "name", None)))
        if name is None:
            return run
        run = plain(run)
        return Reported(run, reporter, _custom(reporter, name, chunks, run))

    def registering(register: Run) -> Run:
        def registered(computation_type: Any, custom_function: Run) -> Any:
            return register(computation_type, reported(computation_type, custom_function))

        return registered

    # PyTorch's own looks the functions up in the schedule, whenever it is called.
    known = {kind: reported(kind, run) for kind, run in functions.items()}
    return [
        (schedule, "_comp_type_to_function_map", known),
        *put(reporter, schedule, "register_custom_function", registering),
    ]


def _custom(reporter: Reporter, name: Name, chunks: dict[int, int], run: Run) -> Run:
    def reported(action: Any, *arguments: Any, **named: Any) -> Any:
        # Part of a pair that another function runs.
        if reporter.in_instruction:
            return run(action, *arguments, **named)
        parts = getattr(action, "sub_actions", None)
        unit = parts[-1] if parts else action
        chunk = chunks.get(getattr(unit, "stage_index", -1), 0)
        reporter.begin(name, getattr(unit, "microbatch_index", None), chunk)
        try:
            return run(action, *arguments, **named)
        finally:
            reporter.end()

    return reported


# The names of what a stage computes, and of a backward without the gradients of weights.
_METHODS: dict[str, tuple[Name, Optional[Name]]] = {
    "forward_one_chunk": ("forward", None),
    "backward_one_chunk": ("backward", "backward_input"),
    "backward_weight_one_chunk": ("backward_weight", None),
}


# Of a sharded stage: at once, in which newer releases call the other one, or after it was started.
_REDUCTIONS = ("perform_reduce_grad", "wait_for_gradient_reduction")


def _computed(reporter: Reporter, name: Name, partial_name: Optional[Name], chunk: int, run: Run) -> Run:
    return _native.InstructionCall(reporter, run, name, chunk, has_microbatch=True, partial_name=partial_name)


def _stepped(reporter: Reporter, run: Run) -> Run:
    told = reporter.instruction("optimizer_step", run)

    def stepped(*arguments: Any, **named: Any) -> Any:
        try:
            return told(*arguments, **named)
        finally:
            reporter.end_step()

    return stepped
