"""What ``pfod`` reports about itself, its GPUs and its jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class DaemonStatus:
    """The daemon itself."""

    version: str
    """The version of ``pfod``."""
    pid: int
    """Its process id."""
    uptime_s: float
    """Seconds since it started."""
    driver: Optional[str]
    """The driver's version; None if the driver could not be loaded."""
    driver_problem: Optional[str]
    """What is wrong with the driver; None if nothing is."""
    sessions: int
    """The number of open sessions."""
    only_observes: bool
    """Whether ``pfod`` sets no clocks, and follows plans as if it did."""


@dataclass(frozen=True)
class GpuStatus:
    """One GPU."""

    index: int
    """The driver's index, for people only."""
    uuid: str
    """The UUID."""
    model: str
    """The model."""
    requested_mhz: Optional[int]
    """The SM clock that pfo locked, in MHz; None if pfo holds no lock."""
    observed_mhz: Optional[int]
    """The SM clock that the driver reports, in MHz; None if it reports none."""
    power_w: Optional[float]
    """The power that the driver reports, in watts; None if it reports none."""
    power_limit_w: Optional[int]
    """The power limit that pfo set, in watts; None if pfo set none."""
    leased: bool
    """Whether a session holds the lease of the GPU."""
    problem: Optional[str]
    """What is wrong with the GPU; None if nothing is."""


@dataclass(frozen=True)
class PlanStatus:
    """A plan of a job."""

    number: int
    """Counts the plans of the job from 1."""
    label: str
    """The name that the client gave the plan."""
    predicted_time_s: Optional[float]
    """The step time that the plan predicts, in seconds; None without a prediction."""
    predicted_energy_j: Optional[float]
    """The step energy that the plan predicts, in joules, of one rank of each stage; None without a
    prediction."""
    suspended: Optional[str]
    """Why the plan is suspended, while the job runs at default clocks; None if it is not."""


@dataclass(frozen=True)
class Window:
    """What was measured of a job while it ran one plan, or default clocks.

    The first step under a plan and the last one before it are left out, because clocks still
    settle.
    """

    plan: Optional[PlanStatus]
    """The plan; None at default clocks."""
    ranks: int
    """The number of ranks on this node that were measured."""
    steps: int
    """The number of whole steps, of the rank that has the fewest."""
    iteration_time_s: float
    """Mean time from one step's begin to the next one's, of the slowest rank, in seconds."""
    iteration_energy_j: Optional[float]
    """Mean energy of a step, of all ranks on this node together, in joules; None if one of their
    GPUs has no energy counter."""


@dataclass(frozen=True)
class RankStatus:
    """One rank on this node."""

    rank: int
    """The global rank."""
    stage: int
    """Its pipeline stage, counted from 0."""
    pid: int
    """Its process id."""
    gpu_uuid: str
    """The UUID of its GPU."""
    step: Optional[int]
    """The number of the step that it began last; None before the first."""
    plan: Optional[int]
    """The number of the plan that it runs; None at default clocks."""
    mismatched_steps: int
    """The number of steps whose instructions did not follow the plan."""
    last_mismatch: Optional[str]
    """The last of these mismatches, in words."""
    lost_events: int
    """The number of events that the rank could not deliver."""
    untimed_calls: int
    """The number of calls, up to the last step begun, that counted at once because they could not
    be timed on the GPU."""
    energy_j: Optional[float]
    """The energy of its GPU since the session began, in joules; None if the GPU has no energy
    counter."""
    clock_changes: int
    """The number of clock changes that ``pfod`` asked of the driver."""
    problem: Optional[str]
    """What is wrong; None if nothing is."""


@dataclass(frozen=True)
class JobStatus:
    """The part of a job that runs on this node."""

    job: str
    """The name."""
    uid: int
    """The user id of its owner."""
    pp_degree: int
    """The number of pipeline stages."""
    plan: Optional[PlanStatus]
    """The plan that the job runs; None at default clocks."""
    loaded: Optional[PlanStatus]
    """The plan that is loaded and waits for a swap; None if there is none."""
    swap_at_step: Optional[int]
    """The step at which a pending swap takes place; None without one."""
    energy_j: Optional[float]
    """The energy of the job's GPUs on this node while they were leased, in joules; None if one of
    them has no energy counter."""
    windows: list[Window]
    """What was measured under each plan, oldest first; the last one still grows."""
    ranks: list[RankStatus]
    """The ranks on this node, by global rank."""


@dataclass(frozen=True)
class Status:
    """What ``pfod`` reports about itself, the GPUs and the jobs of the node."""

    daemon: DaemonStatus
    """The daemon."""
    gpus: list[GpuStatus]
    """Every GPU of the node, in the driver's order."""
    jobs: list[JobStatus]
    """The jobs that the caller may see."""

    def _repr_html_(self) -> str:
        from pfo_gpu.html import grid

        gpus = [(gpu.index, gpu.model, gpu.requested_mhz, gpu.observed_mhz, gpu.power_w, gpu.problem) for gpu in self.gpus]
        jobs = [
            (job.job, len(job.ranks), job.pp_degree, job.plan.label if job.plan else "default clocks", *_newest(job))
            for job in self.jobs
        ]
        return grid(["GPU", "model", "locked MHz", "MHz", "W", "problem"], gpus) + grid(
            ["job", "ranks", "stages", "plan", "step s", "step J"], jobs
        )

    def job(self, name: str, uid: Optional[int] = None) -> JobStatus:
        """The job of a name.

        Args:
            name: The job's name.
            uid: The user id of its owner; required if several users have a job of this name.

        Raises:
            KeyError: There is no such job, or several users have one and ``uid`` is not given.
        """
        found = [job for job in self.jobs if job.job == name and uid in (None, job.uid)]
        if not found:
            raise KeyError(f"no job {name!r} on this node; there are {[job.job for job in self.jobs]}")
        if len(found) > 1:
            raise KeyError(f"users {[job.uid for job in found]} have a job {name!r}; name one of them with uid")
        return found[0]


def _newest(job: JobStatus) -> tuple[Optional[str], Optional[str]]:
    """Time and energy of a step in the newest window of what the job runs."""
    windows = [window for window in job.windows if window.plan == job.plan]
    if not windows:
        return None, None
    newest = windows[-1]
    energy = newest.iteration_energy_j
    return f"{newest.iteration_time_s:.4g}", None if energy is None else f"{energy:.5g}"


def of_json(status: dict[str, Any]) -> Status:
    """The status in an answer, without fields that only a newer daemon has."""
    return Status(
        daemon=_record(DaemonStatus, status["daemon"]),
        gpus=[_record(GpuStatus, gpu) for gpu in status["gpus"]],
        jobs=[_job(job) for job in status["jobs"]],
    )


def plan_of(plan: Optional[dict[str, Any]]) -> Optional[PlanStatus]:
    """A plan in an answer."""
    return None if plan is None else _record(PlanStatus, plan)


def _job(job: dict[str, Any]) -> JobStatus:
    parts = {
        "plan": plan_of(job["plan"]),
        "loaded": plan_of(job["loaded"]),
        "windows": [_record(Window, {**window, "plan": plan_of(window["plan"])}) for window in job["windows"]],
        "ranks": [_record(RankStatus, rank) for rank in job["ranks"]],
    }
    return _record(JobStatus, {**job, **parts})


def _record(record: type[_Record], values: dict[str, Any]) -> _Record:
    names = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    return record(**{name: values[name] for name in names})
