"""What a step takes, for an experiment tracker."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Protocol, Union, cast

from pfo_gpu._native import NodeError
from pfo_gpu.node.node import Node
from pfo_gpu.node.status import JobStatus, Window
from pfo_gpu.session import Session


# Trackers that are known to have a reading, and warnings that are logged.
_MOST_TRACKERS, _MOST_REPORTS = 8, 20


@dataclass(frozen=True)
class StepReading:
    """What the steps of a job took on this node, over the last interval."""

    step: int
    """The step that the slowest rank began last."""
    steps: int
    """The steps that were measured."""
    time_s: float
    """Mean time of a step, in seconds."""
    energy_j: Optional[float]
    """Mean energy of a step, of all of the job's GPUs on this node together, in joules; None if one of them has
    no energy counter."""
    plan: Optional[int]
    """The number of the plan; None at default clocks."""
    saving: Optional[float]
    """The share of the energy of a step that the plan saves, compared with the last window at default clocks;
    None without a plan, or if default clocks were not measured."""
    slowdown: Optional[float]
    """The share by which a step takes longer, compared with the same window."""

    @property
    def power_w(self) -> Optional[float]:
        """Mean power of the job's GPUs on this node together, in watts."""
        return None if self.energy_j is None else self.energy_j / self.time_s

    def metrics(self) -> dict[str, float]:
        """Its figures by the names that trackers show; those that are not known are left out."""
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

    def log_metrics(self, metrics: dict[str, float], step: int) -> object: ...


class _TakesLogs(Protocol):
    """A run of Weights & Biases, or the module ``wandb``."""

    def log(self, data: dict[str, Any], step: int) -> object: ...


Tracker = Union[_TakesScalars, _TakesMetrics, _TakesLogs, Callable[[Mapping[str, float], int], object]]
"""A ``SummaryWriter``, ``mlflow``, a run of ``wandb``, or a function of metrics and step."""


class StepEnergy:
    """Time and energy of the steps of a session's job, measured by the GPUs' own counters.

    ::

        with pfo_gpu.StepEnergy(session) as energy:
            for step, batch in enumerate(batches):
                train(batch)
                energy.log_to(writer, step)

    A thread asks ``pfod`` every few seconds; :meth:`log_to` only hands on what it has found, and neither waits
    nor raises. All ranks of a node get the same figures, so that one rank of each node is enough.

    Args:
        session: The session, or the name of a job.
        node: The node's daemons; else those of :class:`Node`.
        every_s: How often to ask, in seconds. Energy counters are refreshed 10 times a second, so that less
            than 1 s is inexact.
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
        """The newest reading; None before the first."""
        return self._latest

    def log_to(self, tracker: Tracker, step: int) -> bool:
        """Hands the newest reading to a tracker, unless this very object has it already.

        Returns:
            Whether there was one, and the tracker took it. What it raises is logged once.
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
        """Asks no more."""
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
    before: Optional[tuple[float, JobStatus]] = None
    while True:
        energy = watcher()
        if energy is None or energy._closed.is_set():
            return
        try:
            now = (time.monotonic(), energy._node.status().job(energy._job))
            reading = None if before is None else _between(before, now)
            if reading is not None:
                energy._take(reading)
            if reading is not None or before is None or not _goes_on(before[1], now[1]):
                before = now
        except (NodeError, KeyError) as error:
            energy._report(f"the energy of steps is not known: {error}")
        closed, every_s = energy._closed, energy._every_s
        del energy
        closed.wait(every_s)


def _goes_on(before: JobStatus, now: JobStatus) -> bool:
    return [(rank.rank, rank.pid) for rank in before.ranks] == [(rank.rank, rank.pid) for rank in now.ranks]


def _between(before: tuple[float, JobStatus], now: tuple[float, JobStatus]) -> Optional[StepReading]:
    """What the steps between two looks took; None if there was no whole one."""
    (then_s, then), (now_s, job) = before, now
    pairs = list(zip(then.ranks, job.ranks))
    if not pairs or not _goes_on(then, job):
        return None
    steps = min((new.step or 0) - (old.step or 0) for old, new in pairs)
    if steps <= 0:
        return None
    energies = [
        None if old.energy_j is None or new.energy_j is None else new.energy_j - old.energy_j
        for old, new in pairs
    ]
    known = [energy for energy in energies if energy is not None]
    plan = None if job.plan is None or job.plan.suspended else job.plan.number
    saving, slowdown = _compared(job.windows, plan)
    return StepReading(
        step=min(rank.step or 0 for rank in job.ranks),
        steps=steps,
        time_s=(now_s - then_s) / steps,
        energy_j=sum(known) / steps if len(known) == len(energies) else None,
        plan=plan,
        saving=saving,
        slowdown=slowdown,
    )


def _compared(windows: list[Window], plan: Optional[int]) -> tuple[Optional[float], Optional[float]]:
    under = [window for window in windows if window.plan is not None and window.plan.number == plan]
    default = [window for window in windows if window.plan is None]
    if plan is None or not under or not default:
        return None, None
    planned, unplanned = under[-1], default[-1]
    slowdown = planned.iteration_time_s / unplanned.iteration_time_s - 1
    if planned.iteration_energy_j is None or not unplanned.iteration_energy_j:
        return None, slowdown
    return 1 - planned.iteration_energy_j / unplanned.iteration_energy_j, slowdown
