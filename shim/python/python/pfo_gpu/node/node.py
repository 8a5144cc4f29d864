"""Questions to the daemons of a node."""

from __future__ import annotations

import os
import statistics
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from pfo_gpu import _native
from pfo_gpu._native import NodeError
from pfo_gpu.node import requests, tuning
from pfo_gpu.node import status as status_of
from pfo_gpu.node.connection import ask
from pfo_gpu.node.savings import Savings
from pfo_gpu.node.status import JobStatus, PlanStatus, Status
from pfo_gpu.node.tuning import Tuned, TuneProgress

if TYPE_CHECKING:
    from pfo_gpu.planner import Frontier, Plan, Profile
    from pfo_gpu.planner.files import PathLike

_SOCKET = "/run/pfo/pfod.sock"


@dataclass(frozen=True)
class Swapped:
    """A swap that was decided or, with ``wait=True``, done."""

    plan: Optional[PlanStatus]
    """The plan; None at default clocks."""
    step: int
    """The step at which every rank changes."""
    ranks: int
    """The ranks on this node that take part."""
    changed: int
    """How many of them have changed already."""


@dataclass(frozen=True)
class KeptPlan:
    """A plan with which a job begins whenever it starts anew."""

    job: str
    """The job's name."""
    uid: int
    """Whose it is."""
    label: str
    """What the plan is called in status."""
    stages: int
    """Its number of stages."""
    num_microbatches: int
    """The microbatches of a step."""
    state: str
    """What has become of it: ``"Ready"``, ``"Unready"``, ``"Begun"``, ``"NextRun"`` or ``"Refused"``."""
    refusal: Optional[str]
    """Why the job did not or would not begin with it."""


@dataclass(frozen=True)
class StoredProfile:
    """A profile that ``pfo-agent`` keeps."""

    model: str
    """The model that was trained; the job's name if it was given none."""
    uid: int
    """Whose job was measured."""
    gpus: str
    """The models of its GPUs."""
    partition: str
    """How the model was divided among them."""
    measured_unix_s: int
    """When its measurement ended, in seconds since 1970."""


class Node:
    """The daemons of this node. Every call opens a connection of its own, and may be made from any thread.

    Args:
        socket: The socket of ``pfod``; else ``PFO_SOCKET``, else ``/run/pfo/pfod.sock``.
        agent_socket: That of ``pfo-agent``; else ``PFO_AGENT_SOCKET``, else ``pfo-agent.sock`` beside the other.
        patience_s: The longest time to wait for an answer, in seconds.

    Every method raises :class:`NodeError` if the daemon does not answer, or refuses; the message says what to
    do about it.

    Raises:
        ValueError: ``patience_s`` is no time that can be waited.
    """

    def __init__(
        self,
        socket: Union[str, os.PathLike[str], None] = None,
        agent_socket: Union[str, os.PathLike[str], None] = None,
        *,
        patience_s: float = 10.0,
    ) -> None:
        if not 0 <= patience_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"patience_s is {patience_s}; it must be a number of seconds from 0 on, and finite")
        self.socket = os.fspath(socket or os.environ.get("PFO_SOCKET") or _SOCKET)
        beside = os.path.join(os.path.dirname(self.socket), "pfo-agent.sock")
        self.agent_socket = os.fspath(agent_socket or os.environ.get("PFO_AGENT_SOCKET") or beside)
        self.patience_s = patience_s

    def status(self) -> Status:
        """The daemon, the GPUs, and the jobs that the caller may see, with what was measured of them."""
        return status_of.of_json(self._pfod("Status")["Status"])

    def swap(
        self,
        job: str,
        plan: Union[Plan, PathLike, None],
        *,
        label: Optional[str] = None,
        at_step: Optional[int] = None,
        wait: bool = False,
        uid: Optional[int] = None,
    ) -> Swapped:
        """Changes what a job runs, at the same step on all of its ranks on this node.

        Args:
            job: The job's name.
            plan: A plan, or the file of one; None for default clocks.
            label: What to call the plan in the status; else the name of its file.
            at_step: The step at which to swap, refused if a rank has begun it; else the first that no rank has
                begun.
            wait: Return only when every rank has changed.
            uid: Whose job; else the caller's own.

        Raises:
            PlanError: The plan's file holds none.
            NodeError: The daemon refuses; a plan that does not fit the job is refused with the first difference.
        """
        target: object = "DefaultClocks" if plan is None else {"Table": requests.table(plan, label)}
        return self._swap(job, target, at_step, wait, uid)

    def rollback(self, job: str, *, wait: bool = False, uid: Optional[int] = None) -> Swapped:
        """Changes a job back to what it ran before the last swap.

        Args:
            job: The job's name.
            wait: Return only when every rank has changed.
            uid: Whose job; else the caller's own.
        """
        return self._swap(job, "Previous", None, wait, uid)

    def _swap(self, job: str, target: object, at_step: Optional[int], wait: bool, uid: Optional[int]) -> Swapped:
        step = None if at_step is None else requests.whole("at_step", at_step, 64)
        request = {"job": requests.selector(job, uid), "target": target, "at_step": step, "wait": wait}
        return _swapped(self._pfod({"PlanSwap": request}, wait)["Swapped"])

    def keep(
        self, job: str, plan: Union[Plan, PathLike], *, label: Optional[str] = None, uid: Optional[int] = None
    ) -> KeptPlan:
        """Keeps a plan with which the job begins whenever it starts anew, in the place of the former one, as
        ``pfoctl plan load --for``. The job need not be there; one that trains goes on as it does.

        Args:
            job: The job's name.
            plan: A plan, or the file of one.
            label: What to call the plan in the status; else the name of its file.
            uid: Whose job; else the caller's own.
        """
        request = {"job": requests.selector(job, uid), **requests.table(plan, label)}
        return _kept(self._agent({"FirstPlanLoad": request})["FirstPlan"])

    def kept_plans(self) -> list[KeptPlan]:
        """The plans that are kept for jobs that the caller may see."""
        return [_kept(plan) for plan in self._agent("FirstPlans")["FirstPlans"]]

    def forget(self, job: str, *, uid: Optional[int] = None) -> KeptPlan:
        """Keeps no plan for a job any more; returns the one that was kept."""
        return _kept(self._agent({"FirstPlanDrop": requests.selector(job, uid)})["FirstPlan"])

    def profiles(self) -> list[StoredProfile]:
        """The profiles that ``pfo-agent`` keeps and the caller may see."""
        stored = self._agent("Profiles")["Profiles"]
        return [
            StoredProfile(
                **{name: profile["key"][name] for name in ("model", "uid", "gpus", "partition")},
                measured_unix_s=profile["measured_unix_s"],
            )
            for profile in stored
        ]

    def profile(
        self,
        model: str,
        *,
        uid: Optional[int] = None,
        gpus: Optional[str] = None,
        partition: Optional[str] = None,
    ) -> Profile:
        """A stored profile.

        Args:
            model: The model that was trained: the job's name, unless the sweep was given another.
            uid: Whose job was measured; else the caller's own.
            gpus: The models of the GPUs, if there is more than one profile.
            partition: How the model was divided among them, if there is more than one profile.
        """
        selector = {"model": model, "uid": requests.user(uid), "gpus": gpus, "partition": partition}
        return requests.profile_of(self._agent({"ProfileRead": selector})["Profile"]["csv"])

    def sweep(
        self,
        job: str,
        *,
        model: Optional[str] = None,
        steps: int = 10,
        settling_steps: int = 1,
        stride_mhz: int = 30,
        min_mhz: int = 0,
        max_slowdown: Optional[float] = None,
        reuse: bool = True,
        uid: Optional[int] = None,
    ) -> Profile:
        """Measures a running job at one clock after the other, from the highest down, and returns its profile.

        That takes minutes, during which the job is slower; an interrupted sweep pauses, and the next call
        continues it.

        Args:
            job: The job's name.
            model: The model that it trains, to find the profile by; else the job's name.
            steps: Steps that are measured at each clock.
            settling_steps: Steps that are left out after each change of the clock.
            stride_mhz: The least distance of two clocks, in MHz.
            min_mhz: No clock below this is tried, in MHz.
            max_slowdown: End with the first clock at which a step takes more than this share longer.
            reuse: Return a profile of the same that is stored already.
            uid: Whose job; else the caller's own.
        """
        if max_slowdown is not None:
            max_slowdown = requests.number("max_slowdown", max_slowdown, 0, "0.1")
        settings = {
            "steps": requests.whole("steps", steps),
            "settling_steps": requests.whole("settling_steps", settling_steps),
            "stride_mhz": requests.whole("stride_mhz", stride_mhz),
            "min_mhz": requests.whole("min_mhz", min_mhz),
            "max_slowdown": max_slowdown,
        }
        order = {"job": requests.selector(job, uid), "model": model, "settings": settings, "reuse": reuse}
        swept = self._agent({"SweepAttend": order}, wait=True)
        if "Reused" in swept:
            key = swept["Reused"]["key"]
        else:
            state = swept["Sweep"]["state"]
            if not isinstance(state, dict) or state.get("ended") in (None, "stopped"):
                raise NodeError(f"the sweep of job {job} has no profile: {requests.reason(state)}; sweep again")
            key = swept["Sweep"]["profile"]
        return self.profile(**key)

    def tune(
        self,
        job: str,
        *,
        max_slowdown: float = 0.005,
        profile: Union[Profile, PathLike, bytes, None] = None,
        order: Union[PathLike, bytes, None] = None,
        guard: bool = True,
        progress: Optional[Callable[[TuneProgress], object]] = None,
        uid: Optional[int] = None,
        **terms: object,
    ) -> Tuned:
        """Finds a plan for a running job, proves it on the job, and leaves the job running it, as ``pfoctl tune``.

        The agent does it, and goes on if this program ends; calling it again watches the same tune. Without a
        stored profile it sweeps the job first. That takes minutes.

        Args:
            job: The job's name.
            max_slowdown: By what share a step may take longer than at default clocks.
            profile: A profile; else the stored one.
            order: An order file; else the order that the job runs.
            guard: Whether the agent compares the plan with default clocks later on.
            progress: Is called with each change; else a notebook shows it below the cell, a terminal as a line.
            uid: Whose job; else the caller's own.
            terms: Others of the terms of ``pfoctl tune --set``, such as ``rounds=2`` or ``sweep_stride=60``.

        Raises:
            NodeError: The job cannot be tuned, or its tune was stopped or has failed.
        """
        show = tuning.shown() if progress is None else progress
        given = tuning.terms_of({"max_slowdown": max_slowdown, "guard": guard, **terms})
        order_to = {
            "job": requests.selector(job, uid),
            "terms": given,
            "profile": None if profile is None else list(requests.csv_of(profile)),
            "order": None if order is None else list(order if isinstance(order, bytes) else requests.contents(order)),
        }
        status = self._agent({"TuneStart": order_to}, wait=True)["Tune"]
        while True:
            now = tuning.progress_of(status)
            show(now)
            if now.is_over:
                break
            watch = {"TuneWatch": {"job": requests.selector(job, uid), "seen": status["changed"]}}
            status = self._agent(watch, wait=True)["Tune"]
        return self._tuned(status, uid)

    def tuned(self, job: str, *, uid: Optional[int] = None) -> Tuned:
        """Returns the result of the last tune of a job, which anybody may have started.

        Raises:
            NodeError: There was none, it goes on, or it was stopped or has failed.
        """
        found = [status for status in self._agent("Tunes")["Tunes"] if status["job"] == job and uid in (None, status["uid"])]
        if not found:
            raise NodeError(f"job {job} was not tuned on this node; `Node.tune` does that")
        if not tuning.progress_of(found[-1]).is_over:
            raise NodeError(f"the tune of job {job} goes on; `Node.tune` waits for its end")
        return self._tuned(found[-1], uid)

    def _tuned(self, status: dict[str, Any], uid: Optional[int]) -> Tuned:
        refusal = tuning.refusal_of(status)
        if refusal is not None:
            raise NodeError(refusal)
        job = status["job"]
        answer = self._agent({"TuneRead": requests.selector(job, uid)})["TuneReport"]
        return tuning.tuned(job, tuning.progress_of(status).state, answer)

    def tunes(self) -> list[TuneProgress]:
        """Every tune that the agent knows of and the caller may see."""
        return [tuning.progress_of(status) for status in self._agent("Tunes")["Tunes"]]

    def stop_tune(self, job: str, *, uid: Optional[int] = None) -> None:
        """Ends the tune of a job, which changes to default clocks."""
        self._agent({"TuneStop": requests.selector(job, uid)}, wait=True)

    def guard(self, job: str, max_slowdown: Optional[float], *, uid: Optional[int] = None) -> None:
        """Has the agent compare a job's plan with default clocks now and then, and end a plan that takes longer.

        Args:
            job: The job's name.
            max_slowdown: The share by which a step may take longer; None ends the guard.
            uid: Whose job; else the caller's own.
        """
        if max_slowdown is not None:
            max_slowdown = requests.number("max_slowdown", max_slowdown, 0, "0.01 for 1 %")
        self._agent({"Guard": {"job": requests.selector(job, uid), "max_slowdown": max_slowdown}})

    def load_frontier(
        self, job: str, frontier: Frontier, *, label: str = "from Python", uid: Optional[int] = None
    ) -> None:
        """Gives the agent the frontier of a job, from which it answers stragglers. :meth:`tune` does that itself."""
        content = {"label": label, "frontier": list(frontier.to_bytes())}
        self._agent({"FrontierLoad": {"job": requests.selector(job, uid), **content}})

    def straggler(
        self, job: str, slowdown: Optional[float], *, wait: bool = False, uid: Optional[int] = None
    ) -> Swapped:
        """Slows a job down to a straggler for which it waits anyway, and saves energy by that.

        Args:
            job: The job's name.
            slowdown: How many times the fastest iteration the straggler takes, such as ``1.2``; None if it is gone,
                and the job returns to what it ran before.
            wait: Return only when every rank has changed.
            uid: Whose job; else the caller's own.

        Raises:
            NodeError: The daemon refuses, as without a frontier of the job.
        """
        if slowdown is not None:
            slowdown = requests.number("slowdown", slowdown, 1, "1.2")
        request = {"job": requests.selector(job, uid), "slowdown": slowdown, "wait": wait}
        return _swapped(self._agent({"Straggler": request}, wait)["Swapped"])

    def answer_stragglers(self, job: str, on: bool = True, *, uid: Optional[int] = None) -> None:
        """Has the agent respond to ranks of a job that it finds slow, or stop that."""
        self._agent({"StragglerAuto": {"job": requests.selector(job, uid), "on": on}})

    def savings(
        self,
        job: Optional[str] = None,
        *,
        by: str = "job",
        since: Optional[float] = None,
        until: Optional[float] = None,
        uid: Optional[int] = None,
    ) -> Savings:
        """What plans have saved, by the ledger of the agent, as ``pfoctl savings``.

        Args:
            job: Only jobs of this name.
            by: What each row is of: ``"job"``, ``"user"``, ``"plan"``, ``"day"``, ``"partition"`` or ``"model"``.
            since: Only what was measured from this time on, in seconds since 1970, as :func:`time.time` has it.
            until: Only what was measured before.
            uid: Only jobs of this user.
        """
        times = {
            name: None if time_s is None else requests.whole(name, int(time_s), 64)
            for name, time_s in (("since", since), ("until", until))
        }
        query = {
            "job": job,
            "uid": requests.user(uid),
            "since_unix_s": times["since"],
            "until_unix_s": times["until"],
            "by": by,
            "fleet_month": None,
        }
        return Savings.of_json(by, self._agent({"Savings": query})["Savings"])

    def p2p_power(self, job: str, *, uid: Optional[int] = None) -> list[float]:
        """What a GPU of each stage of a job draws while it only waits for its neighbour, in watts.

        It is that of the GPU if it was measured, else that of its model.

        Raises:
            NodeError: There is no such job, or it is not known of one of the stages; ``pfoctl p2p measure``
                measures it.
        """
        status = self.status()
        models = {gpu.uuid: gpu.model for gpu in status.gpus}
        known = self._agent("P2pPowers")["P2pPowers"]
        of_stage: dict[int, list[float]] = {}
        for rank in job_in(status, job, uid).ranks:
            power_w = requests.power_w(known, rank.gpu_uuid, models[rank.gpu_uuid])
            of_stage.setdefault(rank.stage, []).append(power_w)
        return [statistics.fmean(of_stage[stage]) for stage in sorted(of_stage)]

    def __repr__(self) -> str:
        return f"<pfo_gpu.Node {self.socket}, {self.agent_socket}>"

    def _pfod(self, request: object, wait: bool = False) -> Any:
        patience_s = None if wait else self.patience_s
        return ask(self.socket, _native.request_frame, request, patience_s, "pfod")

    def _agent(self, request: object, wait: bool = False) -> Any:
        patience_s = None if wait else self.patience_s
        return ask(self.agent_socket, _native.agent_request_frame, request, patience_s, "pfo-agent")


def job_in(status: Status, name: str, uid: Optional[int] = None) -> JobStatus:
    """The job of a name; a :class:`NodeError` if there is none, as of what the daemons themselves refuse."""
    try:
        return status.job(name, uid)
    except KeyError as error:
        raise NodeError(error.args[0]) from None


def _swapped(swapped: dict[str, Any]) -> Swapped:
    return Swapped(**{**swapped, "plan": status_of.plan_of(swapped["plan"])})


def _kept(plan: dict[str, Any]) -> KeptPlan:
    refusal = plan["state"]["Refused"] if isinstance(plan["state"], dict) else None
    names = ("job", "uid", "label", "stages", "num_microbatches")
    state = plan["state"] if refusal is None else "Refused"
    return KeptPlan(**{name: plan[name] for name in names}, state=state, refusal=refusal)
