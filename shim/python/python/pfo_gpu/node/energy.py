"""Time and energy of steps, for an experiment tracker."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Protocol, Union, cast

from pfo_gpu._native import NodeError
from pfo_gpu.node.node import Node, job_in
from pfo_gpu.node.status import JobStatus, Status, Window
from pfo_gpu.session import Session


# Trackers that are known to have a reading, and warnings that are logged.
_MOST_TRACKERS, _MOST_REPORTS = 8, 20


@dataclass(frozen=True)
class StepReading:
    """Time and energy of the steps of a job on this node, between two looks at ``pfod``."""

    step: int
    """The number of the step that the slowest rank began last."""
    steps: int
    """The number of steps that were measured."""
    time_s: float
    """Mean time of a step, from its begin to the next one's, of the slowest rank, in seconds."""
    energy_j: Optional[float]
    """Mean energy of a step, of all of the job's GPUs on this node together, in joules; None if one
    of them has no energy counter."""
    plan: Optional[int]
    """The number of the plan; None at default clocks, also while a plan is suspended."""
    saving: Optional[float]
    """The share of a step's energy that the plan saves: its last window compared with the last one
    at default clocks. None without a plan, or if one of the two energies was not measured."""
    slowdown: Optional[float]
    """The share by which a step takes longer, by the same comparison; None without it."""

    @property
    def power_w(self) -> Optional[float]:
        """Mean power of the job's GPUs on this node together, in watts; None if ``energy_j`` is."""
        return None if self.energy_j is None else self.energy_j / self.time_s

    def metrics(self) -> dict[str, float]:
        """The figures by name, such as ``pfo/step_energy_j``, without unknown ones; ``pfo/plan`` is
        0 at default clocks."""
        figures = {
            "pfo/step_time_s": self.time_s,
            "pfo/step_energy_j": self.energy_j,
            "pfo/power_w": self.power_w,
            "pfo/plan": self.plan or 0,
            "pfo/saving": self.saving,
            "pfo/slowdown": self.slowdown,
        }
        return {name: float(figure) for name, figure in figures.items() if figure is not None}


class _TakesScalars(Protocol):
    """A ``SummaryWriter`` of TensorBoard."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class _TakesMetrics(Protocol):
    """The module ``mlflow``, or a logger of Lightning."""

    # Loggers differ in what else a metric may be than a number, and a dict is of exactly one type.
    def log_metrics(self, metrics: dict[str, Any], /, step: int) -> object: ...


class _TakesLogs(Protocol):
    """A run of Weights & Biases, the module ``wandb``, or an ``Accelerator``."""

    def log(self, data: dict[str, Any], /, step: int) -> object: ...


Tracker = Union[_TakesScalars, _TakesMetrics, _TakesLogs, Callable[[Mapping[str, float], int], object]]
"""A ``SummaryWriter``, ``mlflow``, a run of ``wandb``, a logger of Lightning, an ``Accelerator``,
or a function of metrics and step."""


class StepEnergy:
    """Time and energy of the steps of a session's job, measured by the GPUs' own counters.

    ::

        with pfo_gpu.StepEnergy(session) as energy:
            for step, batch in enumerate(batches):
                train(batch)
                energy.log_to(writer, step)

    A thread asks ``pfod`` every ``every_s`` seconds. :meth:`log_to` only passes on the newest
    reading, and neither waits for ``pfod`` nor raises; an error of either is logged once. All ranks
    of a node get the same figures: one rank of each node is enough.

    Args:
        session: The session, or the name of a job.
        node: The node's daemons; defaults to ``Node()``.
        every_s: The time between two readings, in seconds, at least 0.1. The driver refreshes
            energy counters 10 times a second: below 1 s, readings are inexact.
    """

    def __init__(
        self, session: Union[Session, str], node: Optional[Node] = None, *, every_s: float = 10.0
    ) -> None:
        name = session if isinstance(session, str) else session.job
        self._job = name or ""
        self._node = node or Node()
        self._every_s = max(0.1, every_s)
        self._closed = threading.Event()
        self._latest: Optional[StepReading] = None
        self._logged: deque[tuple[Tracker, int]] = deque(maxlen=_MOST_TRACKERS)
        self._reported: set[str] = set()
        self._count = 0
        self._thread = threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Optional[StepReading]:
        """The newest reading; None before the first, which takes two looks with a whole step
        between them."""
        return self._latest

    def log_to(self, tracker: Tracker, step: int) -> bool:
        """Logs the newest reading to a tracker, once: a second call with the same reading does
        nothing.

        Args:
            tracker: The tracker.
            step: The step under which the tracker stores the figures.

        Returns:
            Whether the tracker took a reading. An exception of the tracker is logged once, and
            gives False.
        """
        reading, count = self._latest, self._count
        if reading is None or any(known is tracker and at == count for known, at in self._logged):
            return False
        self._logged.append((tracker, count))
        try:
            _hand(tracker, reading.metrics(), step)
        except Exception as error:
            self._report(f"the energy of a step is not logged: {error}")
            return False
        return True

    def _report(self, warning: str) -> None:
        if warning not in self._reported and len(self._reported) < _MOST_REPORTS:
            self._reported.add(warning)
            logging.getLogger("pfo_gpu").warning("%s", warning)

    def close(self) -> None:
        """Stops asking ``pfod``, without waiting for the thread."""
        self._closed.set()

    def __enter__(self) -> StepEnergy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take(self, reading: StepReading) -> None:
        self._latest = reading
        self._count += 1


def _hand(tracker: Tracker, metrics: dict[str, float], step: int) -> None:
    if hasattr(tracker, "add_scalar"):
        for name, figure in metrics.items():
            cast(_TakesScalars, tracker).add_scalar(name, figure, step)
    elif hasattr(tracker, "log_metrics"):
        cast(_TakesMetrics, tracker).log_metrics(metrics, step=step)
    elif hasattr(tracker, "log"):
        cast(_TakesLogs, tracker).log(metrics, step=step)
    else:
        tracker(metrics, step)


def _watch(watcher: weakref.ref[StepEnergy]) -> None:
    before: Optional[Status] = None
    while True:
        energy = watcher()
        if energy is None or energy._closed.is_set():
            return
        try:
            now = energy._node.status()
            reading = _between(before, now, energy._job)
            before = now
            if reading is not None:
                energy._take(reading)
        except NodeError as error:
            energy._report(f"the energy of steps is not known: {error}")
        closed, every_s = energy._closed, energy._every_s
        del energy
        closed.wait(every_s)


@dataclass(frozen=True)
class _Measured:
    """The sums of a window; the status has the means."""

    steps: int
    time_s: float
    energy_j: Optional[float]

    @classmethod
    def of(cls, window: Window) -> _Measured:
        """What a window measured since it began."""
        mean_j = window.iteration_energy_j
        energy_j = None if mean_j is None else window.steps * mean_j
        return cls(window.steps, window.steps * window.iteration_time_s, energy_j)

    def since(self, before: _Measured) -> _Measured:
        """What was measured after an earlier look at the same window."""
        known = self.energy_j is not None and before.energy_j is not None
        energy_j = cast(float, self.energy_j) - cast(float, before.energy_j) if known else None
        return _Measured(self.steps - before.steps, self.time_s - before.time_s, energy_j)


def _between(before: Optional[Status], now: Status, name: str) -> Optional[StepReading]:
    """What the steps took that were measured between two looks; None if there was no whole one, or if what was
    measured before cannot be told from it."""
    job = job_in(now, name)
    if before is None or not _is_same_daemon(before, now):
        return None
    then = next((found for found in before.jobs if found.job == name), None)
    if then is None or not _goes_on(then, job):
        return None
    measured = _newly_measured(then.windows, job.windows)
    if measured is None or measured.steps <= 0 or measured.time_s <= 0:
        return None
    under = job.windows[-1].plan
    plan = None if under is None or under.suspended else under.number
    saving, slowdown = _compared(job.windows, plan)
    return StepReading(
        step=min(rank.step or 0 for rank in job.ranks),
        steps=measured.steps,
        time_s=measured.time_s / measured.steps,
        energy_j=None if measured.energy_j is None else measured.energy_j / measured.steps,
        plan=plan,
        saving=saving,
        slowdown=slowdown,
    )


def _is_same_daemon(before: Status, now: Status) -> bool:
    """Whether windows that look alike are the same ones: a daemon that was started again begins new ones."""
    return now.daemon.pid == before.daemon.pid and now.daemon.uptime_s >= before.daemon.uptime_s


def _goes_on(before: JobStatus, now: JobStatus) -> bool:
    return [(rank.rank, rank.pid) for rank in before.ranks] == [(rank.rank, rank.pid) for rank in now.ranks]


def _newly_measured(before: list[Window], now: list[Window]) -> Optional[_Measured]:
    """What the newest window measured since an earlier look, which may have been before it began."""
    if not now:
        return None
    newest = now[-1]
    known, known_before = _under(now, _number(newest)), _under(before, _number(newest))
    if len(known) > len(known_before):
        return _Measured.of(newest)
    # The daemon forgets old windows, and a rank that only now has a whole step changes the sums of all.
    if len(known) < len(known_before) or known_before[-1].ranks != newest.ranks:
        return None
    return _Measured.of(newest).since(_Measured.of(known_before[-1]))


def _number(window: Window) -> Optional[int]:
    return None if window.plan is None else window.plan.number


def _under(windows: list[Window], number: Optional[int]) -> list[Window]:
    """The windows under the plan of a number, or at default clocks, oldest first."""
    return [window for window in windows if _number(window) == number]


def _compared(windows: list[Window], plan: Optional[int]) -> tuple[Optional[float], Optional[float]]:
    under, default = _under(windows, plan), _under(windows, None)
    if plan is None or not under or not default:
        return None, None
    planned, unplanned = under[-1], default[-1]
    slowdown = planned.iteration_time_s / unplanned.iteration_time_s - 1
    if planned.iteration_energy_j is None or not unplanned.iteration_energy_j:
        return None, slowdown
    return 1 - planned.iteration_energy_j / unplanned.iteration_energy_j, slowdown
