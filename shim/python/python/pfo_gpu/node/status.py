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
    """Its version."""
    pid: int
    """Its process."""
    uptime_s: float
    """Seconds since it started."""
    driver: Optional[str]
    """The driver's version, if it could be loaded."""
    driver_problem: Optional[str]
    """What is wrong with the driver, if anything."""
    sessions: int
    """Sessions open now."""
    only_observes: bool
    """Whether it sets nothing, so that plans are followed as if their clocks were set."""


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
    """The SM clock that the driver reports, in MHz."""
    power_w: Optional[float]
    """The power that the driver reports, in watts."""
    power_limit_w: Optional[int]
    """The power limit that pfo set, in watts; None if pfo set none."""
    leased: bool
    """Whether somebody holds a lease of it."""
    problem: Optional[str]
    """What is wrong with the GPU, if anything."""


@dataclass(frozen=True)
class PlanStatus:
    """A plan of a job."""

    number: int
    """Counts the plans of the job from 1."""
    label: str
    """Where it came from, as the client called it."""
    predicted_time_s: Optional[float]
    """The step time that the plan predicts, in seconds."""
    predicted_energy_j: Optional[float]
    """The step energy of all stages that the plan predicts, in joules."""
    suspended: Optional[str]
    """Why the plan is suspended; the job then runs at default clocks."""


@dataclass(frozen=True)
class Window:
    """The measured part of a job's life under one plan, or none."""

    plan: Optional[PlanStatus]
    """The plan; None at default clocks."""
    ranks: int
    """The ranks on this node that were measured."""
    steps: int
    """The fewest whole steps that a rank measured."""
    iteration_time_s: float
    """Mean time of a step, of the slowest rank, in seconds."""
    iteration_energy_j: Optional[float]
    """Mean energy of a step, of all ranks on this node together, in joules; None if one of their GPUs has no
    energy counter."""


@dataclass(frozen=True)
class RankStatus:
    """One rank on this node."""

    rank: int
    """The global rank."""
    stage: int
    """Its stage."""
    pid: int
    """Its process."""
    gpu_uuid: str
    """Its GPU."""
    step: Optional[int]
    """The step that it began last."""
    plan: Optional[int]
    """The number of the plan that it runs."""
    mismatched_steps: int
    """Steps in which its instructions did not follow the plan."""
    last_mismatch: Optional[str]
    """The last mismatch, in words."""
    lost_events: int
    """Events that the rank could not deliver."""
    untimed_calls: int
    """Calls that counted when the host made them, because they could not be timed on the GPU."""
    energy_j: Optional[float]
    """Joules of its GPU since the session began; None if that has no energy counter."""
    clock_changes: int
    """Clock changes asked of the driver."""
    problem: Optional[str]
    """What is wrong, if anything."""


@dataclass(frozen=True)
class JobStatus:
    """One job, as far as its ranks are on this node."""

    job: str
    """The name."""
    uid: int
    """Whose it is."""
    pp_degree: int
    """The number of pipeline stages."""
    plan: Optional[PlanStatus]
    """The plan that the job runs; None at default clocks."""
    loaded: Optional[PlanStatus]
    """The plan that is loaded and waits for a swap."""
    swap_at_step: Optional[int]
    """The step at which a swap that is under way takes place."""
    energy_j: Optional[float]
    """Joules that the job's GPUs on this node used while they were leased; None if one of them has no energy
    counter."""
    windows: list[Window]
    """What was measured under each plan, oldest first, the last one running on."""
    ranks: list[RankStatus]
    """The ranks on this node, in the order of their numbers."""


@dataclass(frozen=True)
class Status:
    """Everything that ``pfod`` reports."""

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
        """The job of a name, and of a user if several have one.

        Raises:
            KeyError: There is none, or several users have one and none is named.
        """
        found = [job for job in self.jobs if job.job == name and uid in (None, job.uid)]
        if not found:
            raise KeyError(f"no job {name!r} on this node; there are {[job.job for job in self.jobs]}")
        if len(found) > 1:
            raise KeyError(f"users {[job.uid for job in found]} have a job {name!r}; name one of them with uid")
        return found[0]


def _newest(job: JobStatus) -> tuple[Optional[str], Optional[str]]:
    """Time and energy of a step in the newest window."""
    if not job.windows:
        return None, None
    newest = job.windows[-1]
    energy = newest.iteration_energy_j
    return f"{newest.iteration_time_s:.4g}", None if energy is None else f"{energy:.5g}"


def of_json(status: dict[str, Any]) -> Status:
    """The status in an answer. What a newer daemon adds is left out."""
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
