"""The schedules of Megatron-Core, through the timers that they start and stop."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any, Callable, Optional

from pfo_gpu.integrations.accounts import Account, Expected
from pfo_gpu.integrations.reporting import Reporter, goes_on, refuse, refuse_unknown, report_to, swap_in
from pfo_gpu.session import Session


def follow(
    config: Any,
    timers: Any = None,
    session: Optional[Session] = None,
    *,
    num_microbatches: Optional[int] = None,
    **rank: Any,
) -> Optional[Session]:
    """Reports every forward and backward that Megatron-Core's schedules run to a session.

    The schedules start and stop a timer around each, and around the reduction of gradients, which
    is a ``collective``. The timers keep measuring at their log level, and also report to the
    session. Steps without gradients or with ``forward_only`` are not reported. A second call for
    the same timers changes nothing, unless it gives another session or the first one is closed: the
    timers then report to the new one.

    ``overlap_moe_expert_parallel_comm`` is not followed, because it runs a forward and a backward
    at the same time and a GPU has one clock. Neither is a CUDA graph of the full iteration, because
    its launch starts no timer.

    Args:
        config: The model's configuration.
        timers: Megatron-LM's ``get_timers()``, if the configuration does not have them yet. Without
            any, the configuration gets timers that measure nothing.
        session: The session; by default, one is opened with the ranks of ``parallel_state``.
        num_microbatches: The microbatches of a step; defaults to the number of Megatron-Core's
            calculator.
        rank: Further arguments of the opened session, which have precedence.

    Returns:
        The session, which lives as long as the timers; None if the schedule cannot be followed.

    Raises:
        TypeError: ``session`` is no session, or a session has no argument of such a name.
    """
    for name, reason in _reasons_against(config):
        refuse(name, reason)
        return None
    try:
        timers = timers or config.timers or _silent_timers()
        former = timers.pipeline.reporter if isinstance(timers, _ReportingTimers) else None
        if former is not None and goes_on(former, session):
            # Megatron-LM builds the model once for each chunk.
            config.timers = timers
            return former.session
        if not callable(timers):
            raise TypeError(f"timers is a {type(timers).__name__}")
        if former is not None:
            config.timers = timers
        _order(config, num_microbatches)
        reporting_timers = None if former else type("ReportingTimers", (_ReportingTimers, type(timers)), {})
        described = {**_rank(), "num_microbatches": num_microbatches, **rank} if session is None else {}
    except _NotFollowed as error:
        refuse("Megatron-Core", str(error))
        return None
    except Exception as error:
        refuse_unknown("Megatron-Core", "a configuration of a model whose parallel state is initialized", error)
        return None

    def swap(opened: Session) -> None:
        pipeline = _Pipeline(opened, lambda: _order(config, num_microbatches))
        swap_in([(config, "timers", timers), (timers, "pipeline", pipeline), (timers, "__class__", reporting_timers)])

    refused = partial(refuse_unknown, "Megatron-Core", "timers that can be followed")
    return report_to(session, described, former, swap, refused)


def _reasons_against(config: Any) -> Iterator[tuple[str, str]]:
    """What is not followed, and why."""
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        yield (
            "Megatron-Core's combined 1F1B",
            "it runs a forward and a backward at a time, and a GPU has one clock at a time; switch"
            " overlap_moe_expert_parallel_comm off",
        )
    # Which option it is differs between releases. One that graphs inference only is none of them.
    options = {name: getattr(config, name, None) for name in ("cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules")}
    spelled = [name for name, value in options.items() if "full_iteration" in _words(value)]
    if spelled:
        yield (
            "Megatron-Core with a CUDA graph of the full iteration",
            "a launch of the graph reports no forward and no backward; leave full_iteration out of"
            f" {' and '.join(spelled)}, or report the launch itself as a step with one instruction",
        )


def _words(value: object) -> list[str]:
    """The names in an option, which may be a string, a member of an enumeration, or several of them."""
    several = value if isinstance(value, (list, tuple, set)) else [value]
    return [word for one in several for word in re.findall(r"\w+", str(getattr(one, "name", one)))]


class _NotFollowed(Exception):
    """The schedule cannot be followed; the message is the reason."""


def _silent_timers() -> Any:
    from megatron.core.timers import Timers

    return Timers(log_level=0, log_option="minmax")


def _rank() -> dict[str, Optional[int]]:
    import torch
    from megatron.core import parallel_state

    return {
        "rank": torch.distributed.get_rank(),
        "pp_rank": parallel_state.get_pipeline_model_parallel_rank(),
        "pp_degree": parallel_state.get_pipeline_model_parallel_world_size(),
        "dp_rank": parallel_state.get_data_parallel_rank(with_context_parallel=True),
        "dp_degree": parallel_state.get_data_parallel_world_size(with_context_parallel=True),
        "tp_rank": parallel_state.get_tensor_model_parallel_rank(),
        "tp_degree": parallel_state.get_tensor_model_parallel_world_size(),
    }


def _order(config: Any, num_microbatches: Optional[int]) -> list[tuple[int, int]]:
    """Microbatch and chunk of each forward of a step, in order."""
    from megatron.core.num_microbatches_calculator import get_num_microbatches
    from megatron.core.pipeline_parallel.schedules import get_schedule_table

    if num_microbatches is None:
        try:
            num_microbatches = get_num_microbatches()
        except Exception as error:
            raise _NotFollowed(
                "the number of microbatches is not known: give num_microbatches, or call follow after"
                " init_num_microbatches_calculator"
            ) from error
    order: list[tuple[int, int]] = get_schedule_table(
        num_microbatches,
        config.virtual_pipeline_model_parallel_size or 1,
        config.microbatch_group_size_per_vp_stage,
    )
    return order


class _Pipeline:
    """Reports a step, its forwards and its backwards when the timers around them start and stop."""

    def __init__(self, session: Session, order: Callable[[], list[tuple[int, int]]]) -> None:
        self.reporter = Reporter("Megatron-Core", session, "megatron-core", Account(self._expected))
        self._order = order
        self._units = 0

    def begin_step(self) -> None:
        import torch

        if not torch.is_grad_enabled() or _is_forward_only():
            return
        try:
            order = self._order()
        except Exception as error:
            refuse("a step of Megatron-Core", f"{type(error).__name__}: {error}")
            return
        self._units = len(order)
        last_chunk = max(chunk for _, chunk in order)
        self._forwards = iter(order)
        self._backwards = iter([(microbatch, last_chunk - chunk) for microbatch, chunk in order])
        self.reporter.begin_step()

    def end_step(self) -> None:
        self.reporter.end_step()

    def _expected(self) -> Expected:
        return Expected(self._units, self._units)

    def begin_forward(self) -> None:
        if self.reporter.in_step:
            self.reporter.begin("forward", *next(self._forwards, ()))

    def begin_backward(self) -> None:
        if self.reporter.in_step:
            self.reporter.begin("backward", *next(self._backwards, ()))

    def begin_reduction(self) -> None:
        self.reporter.begin("collective")

    def end(self) -> None:
        self.reporter.end()


def _is_forward_only() -> bool:
    """Whether the schedule that has started a timer evaluates; no timer is told that."""
    # The trainer may have put functions of its own between the schedule and its timer.
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if "forward_only" in frame.f_code.co_varnames:
            return frame.f_locals.get("forward_only") is True
        frame = frame.f_back
    return False


class _ReportingTimers:
    """Timers that also report what they time; their own class is the next base."""

    pipeline: _Pipeline

    def __call__(self, name: str, log_level: Optional[int] = None) -> Any:
        timer = super().__call__(name, log_level)  # type: ignore[misc]
        pipeline = self.pipeline
        if name == "forward-compute":
            return _ReportingTimer(timer, pipeline.begin_forward, pipeline.end)
        if name == "backward-compute":
            return _ReportingTimer(timer, pipeline.begin_backward, pipeline.end)
        if name == "all-grads-sync":
            return _ReportingTimer(timer, pipeline.begin_reduction, pipeline.end)
        if name == "forward-backward":
            return _ReportingTimer(timer, pipeline.begin_step, pipeline.end_step)
        return timer

    def __reduce__(self) -> tuple[object, ...]:
        # A copy of a configuration, or one in a checkpoint, has timers that report nothing.
        plain = type(self).__mro__[2]
        state = {name: value for name, value in vars(self).items() if name != "pipeline"}
        return object.__new__, (plain,), state


class _ReportingTimer:
    """A timer of Megatron-Core that also reports its start and stop."""

    def __init__(self, timer: Any, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._timer = timer
        self._begin = begin
        self._end = end

    def start(self, *arguments: Any, **named: Any) -> None:
        self._timer.start(*arguments, **named)
        self._begin()

    def stop(self, *arguments: Any, **named: Any) -> None:
        self._end()
        self._timer.stop(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)
