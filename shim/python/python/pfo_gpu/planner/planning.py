"""Planning in one call."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence, Union

from pfo_gpu import _native
from pfo_gpu.planner import files
from pfo_gpu.planner.counts import count, counts
from pfo_gpu.planner.frontier import Frontier
from pfo_gpu.planner.plans import Plan
from pfo_gpu.planner.profile import Profile


def plan(
    profile: Union[Profile, files.PathLike, bytes, Any],
    *,
    p2p_power: Union[float, Sequence[float], Mapping[int, float], Sequence[Mapping[int, float]]],
    microbatches: Optional[int] = None,
    schedule: Optional[str] = None,
    order: Union[files.PathLike, bytes, None] = None,
    chunks: int = 2,
    microbatch_group: Optional[int] = None,
    extra_warm_up: bool = False,
    memory_limit: Union[int, Sequence[int]] = (),
    fixed: Union[str, Sequence[str]] = (),
    transfer_ms: float = 0.0,
    switch_latency_ms: float = 0.0,
    set_call_ms: float = 0.0,
    held_up_ms: float = 0.0,
    site_power: float = 0.0,
    plans: int = 200,
    clock_per: str = "instruction",
    gpu: Optional[str] = None,
    progress: Optional[Callable[[float], object]] = None,
) -> Frontier:
    """Makes the frontier of a measured profile, as ``pfoctl plan optimize`` does.

    The call releases the interpreter, so other threads run meanwhile. Ctrl-C interrupts it.

    Args:
        profile: A :class:`Profile`, or what :class:`Profile` reads.
        p2p_power: What a GPU draws while it only waits for its neighbour stage, in watts; or by
            clock, as ``{MHz: watts}``: long waits then get the clock at which waiting draws least.
            Where stages run on different GPU models, a list with either for each stage.
        microbatches: The microbatches of a step; required without an order.
        schedule: The order in which stages run their instructions: ``"1f1b"`` (the default),
            ``"gpipe"``, ``"early-recomputation-1f1b"``, ``"envpipe"``, ``"zb-h1"``, ``"zb-v"``,
            ``"dualpipe-v"``, ``"dualpipe"``, ``"interleaved-1f1b"``, ``"interleaved-zero-bubble"``
            or ``"looped-bfs"``.
        order: A file with the order instead, or its contents as bytes: ``pfo-order/1``, or the
            schedule as PyTorch, Megatron-Core or DeepSpeed write it. It excludes ``schedule``,
            ``fixed`` and the settings of schedules below.
        chunks: The model chunks of each stage, for the interleaved schedules and ``"looped-bfs"``.
        microbatch_group: For ``"interleaved-1f1b"``, Megatron's
            ``microbatch_group_size_per_vp_stage``; defaults to PyTorch's number, which is that of
            the stages if it divides ``microbatches``.
        extra_warm_up: For ``"interleaved-1f1b"``, one more forward ahead, as Megatron runs with
            ``overlap_moe_expert_parallel_comm``.
        memory_limit: For ``"envpipe"``, how many more activations than in 1F1B a stage can keep:
            one number, or one for each stage. By default there is no limit.
        fixed: Further instructions that stages run and whose time does not depend on the clock:
            ``"load"``, ``"collective"``, ``"optimizer_step"``; one name, or several.
        transfer_ms: The time of a transfer between two stages, in milliseconds; 0 means the time in
            the order file, if there is one.
        switch_latency_ms: The time from the call that sets a clock until it is in force, in
            milliseconds.
        set_call_ms: The part of that time for which the call blocks, in milliseconds.
        held_up_ms: How long a change of clocks delays the hand-over of the previous instruction and
            the start of the next one of its stage, in milliseconds.
        site_power: What host, fans and cooling draw for each GPU, in watts.
        plans: The largest number of plans.
        clock_per: What has a clock of its own: each ``"instruction"``, each ``"kind"`` of
            instruction, or each ``"stage"``.
        gpu: The GPU model of the profile, to write into plans.
        progress: A function to call now and then with the share of the work that is done (0 to 1).
            An exception in it ends the planning, and is raised.

    Raises:
        PlanError: The profile or an argument is invalid; the message names value and place.
        TypeError: An argument is of another type; the message names it.
        OSError: A file cannot be read.
    """
    pipeline = _pipeline(
        profile,
        microbatches=microbatches,
        schedule=schedule,
        order=order,
        chunks=chunks,
        microbatch_group=microbatch_group,
        extra_warm_up=extra_warm_up,
        memory_limit=memory_limit,
        fixed=fixed,
        transfer_ms=transfer_ms,
        switch_latency_ms=switch_latency_ms,
        set_call_ms=set_call_ms,
        held_up_ms=held_up_ms,
    )
    made = _native.Frontier.optimize(
        pipeline,
        p2p_power=dict(p2p_power) if isinstance(p2p_power, Mapping) else p2p_power,
        site_power=site_power,
        plans=count("plans", plans),
        clock_per=clock_per,
        gpu=gpu,
        progress=progress,
    )
    return Frontier(made)


def plan_at(
    profile: Union[Profile, files.PathLike, bytes, Any],
    deadline: Union[str, float],
    *,
    p2p_power: Union[float, Sequence[float], Mapping[int, float], Sequence[Mapping[int, float]]],
    site_power: float = 0.0,
    clock_per: str = "instruction",
    gpu: Optional[str] = None,
    **pipeline: Any,
) -> Plan:
    """Makes one plan, as ``pfoctl plan optimize --deadline`` does, much faster than a frontier.

    The call releases the interpreter, so other threads run meanwhile. Ctrl-C interrupts it.

    Args:
        profile: A :class:`Profile`, or what :class:`Profile` reads.
        deadline: The longest iteration time, as :meth:`Frontier.at` takes it.
        p2p_power: As for :func:`plan`.
        site_power: As for :func:`plan`.
        clock_per: As for :func:`plan`.
        gpu: As for :func:`plan`.
        pipeline: The arguments of :func:`plan` from ``microbatches`` to ``held_up_ms``.

    Raises:
        PlanError: The deadline is shorter than the fastest plan, or an argument is invalid.
        TypeError: An argument is of another type, or unknown.
        OSError: A file cannot be read.
    """
    made = _native.Frontier.about(
        _pipeline(profile, **pipeline),
        deadline=str(deadline),
        p2p_power=dict(p2p_power) if isinstance(p2p_power, Mapping) else p2p_power,
        site_power=site_power,
        clock_per=clock_per,
        gpu=gpu,
    )
    return Frontier(made).at(deadline)


def _pipeline(
    profile: Union[Profile, files.PathLike, bytes, Any],
    *,
    microbatches: Optional[int] = None,
    schedule: Optional[str] = None,
    order: Union[files.PathLike, bytes, None] = None,
    chunks: int = 2,
    microbatch_group: Optional[int] = None,
    extra_warm_up: bool = False,
    memory_limit: Union[int, Sequence[int]] = (),
    fixed: Union[str, Sequence[str]] = (),
    transfer_ms: float = 0.0,
    switch_latency_ms: float = 0.0,
    set_call_ms: float = 0.0,
    held_up_ms: float = 0.0,
) -> _native.Pipeline:
    if not isinstance(profile, Profile):
        profile = Profile(profile)
    file: Optional[files.PathLike] = None
    if order is not None and not isinstance(order, bytes):
        file, order = order, files.read(order)
    with files.named(file):
        return _native.Pipeline(
            profile._native,
            microbatches=None if microbatches is None else count("microbatches", microbatches),
            schedule=schedule,
            order=order,
            chunks=count("chunks", chunks, bits=16),
            microbatch_group=None if microbatch_group is None else count("microbatch_group", microbatch_group),
            extra_warm_up=extra_warm_up,
            memory_limit=counts("memory_limit", memory_limit),
            fixed=[fixed] if isinstance(fixed, str) else list(fixed),
            transfer_ms=transfer_ms,
            switch_latency_ms=switch_latency_ms,
            set_call_ms=set_call_ms,
            held_up_ms=held_up_ms,
        )
