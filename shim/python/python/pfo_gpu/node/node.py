"""Requests to the daemons of a node."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from pfo_gpu import _native
from pfo_gpu._native import NodeError
from pfo_gpu.node import in_force, requests, tuning
from pfo_gpu.node import status as status_of
from pfo_gpu.node.connection import Away, NoAnswer, ask
from pfo_gpu.node.savings import SAVINGS_BY, Savings
from pfo_gpu.node.status import JobStatus, PlanStatus, Status
from pfo_gpu.node.tuning import Tuned, TuneProgress

if TYPE_CHECKING:
    from pfo_gpu.planner import Frontier, Plan, Profile
    from pfo_gpu.planner.files import PathLike

_SOCKET = "/run/pfo/pfod.sock"

# How often a tune that is watched is asked how far its sweep is, and an agent whether it is back, in seconds.
_LOOK_S = 1.0


@dataclass(frozen=True)
class Swapped:
    """A swap that was scheduled or, with ``wait=True``, done."""

    plan: Optional[PlanStatus]
    """The plan; None at default clocks."""
    step: int
    """The step at which every rank changes."""
    ranks: int
    """The number of ranks on this node that change."""
    changed: int
    """How many of them have changed already."""


@dataclass(frozen=True)
class FleetSwapped:
    """A swap of a job with ranks on several nodes that was decided or, with ``wait=True``, done."""

    number: int
    """Counts the swaps of the job from 1."""
    plan: Optional[str]
    """The label of the plan; None at default clocks."""
    step: int
    """The step at which every rank changes."""
    nodes: int
    """The number of nodes of the job."""
    changed: int
    """How many of them have changed already."""


@dataclass(frozen=True)
class KeptPlan:
    """A plan with which every new run of a job begins."""

    job: str
    """The job's name."""
    uid: int
    """The user id of its owner."""
    label: str
    """The name of the plan in the status."""
    stages: int
    """The number of stages."""
    num_microbatches: int
    """The number of microbatches of a step."""
    state: str
    """``"Ready"``: ``pfod`` has the plan. ``"Unready"``: ``pfod`` does not have it yet, or the job
    has just left this node. ``"Begun"``: the job runs and began with it. ``"NextRun"``: the job
    runs and began with something else; its next run begins with the plan. ``"Refused"``: the plan
    does not fit."""
    refusal: Optional[str]
    """Why the job did not or would not begin with the plan, if ``state`` is ``"Refused"``."""


@dataclass(frozen=True)
class StoredProfile:
    """A profile that ``pfo-agent`` keeps."""

    model: str
    """The model that was trained; the job's name unless the sweep named a model."""
    uid: int
    """The user id of the owner of the job that was measured."""
    gpus: str
    """The models of its GPUs."""
    partition: str
    """How the model was divided among them, such as ``pp4-dp1-tp1-mb8``."""
    measured_unix_s: int
    """When its measurement ended, in seconds since 1970."""


class Node:
    """The daemons of this node. Every call opens a connection of its own, and may be made from any
    thread.

    Every method raises :class:`NodeError` if the daemon does not answer, if it refuses, or if an
    argument is out of range; the message gives the remedy. Where ``uid`` defaults to the caller's
    own, an administrator's request also finds another user's job, if only one user has a job of
    that name.

    Args:
        socket: The socket of ``pfod``; defaults to ``PFO_SOCKET``, else to ``/run/pfo/pfod.sock``.
        agent_socket: The socket of ``pfo-agent``; defaults to ``PFO_AGENT_SOCKET``, else to
            ``pfo-agent.sock`` beside the other.
        patience_s: The longest time to wait for an answer, in seconds. :meth:`sweep`,
            :meth:`stop_tune` and calls with ``wait=True`` wait without a limit; :meth:`tune` and
            :meth:`watch_tune` for as long as ``pfo-agent`` answers or is restarted within this time.

    Raises:
        ValueError: ``patience_s`` is negative or not finite.
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
        """Returns the state of ``pfod``, the GPUs, and the jobs that the caller may see, with their
        measurements."""
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
    ) -> Union[Swapped, FleetSwapped]:
        """Changes what a job runs, at the same step on all of its ranks, on whichever nodes they
        are.

        Args:
            job: The job's name.
            plan: A plan, or the file of one; None for default clocks.
            label: The name of the plan in the status; defaults to the name of its file, else to
                ``"from Python"``.
            at_step: The step at which to swap, which no rank may have begun; defaults to the first
                that no rank has begun.
            wait: Return only when every rank has changed.
            uid: The user id of the job's owner; defaults to the caller's own.

        Raises:
            PlanError: The file is no plan.
            OSError: The file cannot be read.
            NodeError: ``pfod`` refuses; if the plan does not fit the job, the message has the first
                difference. With ``wait``, also if not every rank has changed, if a GPU does not do
                what its rank's plan says, or if a node was late.
        """
        target: object = "DefaultClocks" if plan is None else {"Table": requests.table(plan, label)}
        return self._swap(job, target, at_step, wait, uid)

    def rollback(
        self, job: str, *, wait: bool = False, uid: Optional[int] = None
    ) -> Union[Swapped, FleetSwapped]:
        """Changes a job back to what it ran before the last swap, on whichever nodes its ranks are.

        Args:
            job: The job's name.
            wait: Return only when every rank has changed.
            uid: The user id of the job's owner; defaults to the caller's own.
        """
        return self._swap(job, "Previous", None, wait, uid)

    def _swap(
        self, job: str, target: object, at_step: Optional[int], wait: bool, uid: Optional[int]
    ) -> Union[Swapped, FleetSwapped]:
        step = None if at_step is None else requests.whole("at_step", at_step, 64)
        request = {"job": requests.selector(job, uid), "target": target, "at_step": step, "wait": wait}
        if self._is_on_several_nodes(job, uid):
            answer = self._agent({"FleetSwap": {**request, "max_slowdown": None}}, wait)
        else:
            answer = self._pfod({"PlanSwap": request}, wait)
        return self._swapped(answer, job, wait, uid)

    def _is_on_several_nodes(self, job: str, uid: Optional[int]) -> bool:
        """Whether the agents of several nodes change a job together. Without an agent, ``pfod``
        refuses to change a job of several nodes."""
        try:
            watched = self._agent("Status")["Status"]["jobs"]
        except NodeError:
            return False
        return any(
            known["job"] == job and known["fleet"] is not None and uid in (None, known["uid"]) for known in watched
        )

    def _swapped(
        self, answer: dict[str, Any], job: str, wait: bool, uid: Optional[int]
    ) -> Union[Swapped, FleetSwapped]:
        if "FleetSwapped" in answer:
            fleet = dict(answer["FleetSwapped"])
            late = fleet.pop("late")
            if late:
                raise NodeError(f"job {job} does not run it on every node: {'; '.join(late)}")
            return FleetSwapped(**fleet)
        swapped = dict(answer["Swapped"])
        done = Swapped(**{**swapped, "plan": status_of.plan_of(swapped["plan"])})
        if wait and done.changed < done.ranks:
            raise NodeError(
                f"{done.changed} of {done.ranks} ranks of job {job} have changed at step {done.step}; another swap"
                " took its place, or ranks have left; see `pfoctl status`"
            )
        why = in_force.missing(self.status, job, uid) if wait else None
        if why is not None:
            raise NodeError(f"not in force on {why}; pfod tries again at each step, see `pfoctl status`")
        return done

    def keep(
        self, job: str, plan: Union[Plan, PathLike], *, label: Optional[str] = None, uid: Optional[int] = None
    ) -> KeptPlan:
        """Keeps a plan with which every new run of a job begins, as ``pfoctl plan load --for``.

        It replaces the plan that was kept for the job. The job need not run; a run that trains does
        not change.

        Args:
            job: The job's name.
            plan: A plan, or the file of one.
            label: The name of the plan in the status; defaults to the name of its file, else to
                ``"from Python"``.
            uid: The user id of the job's owner; defaults to the caller's own.

        Raises:
            PlanError: The file is no plan.
            OSError: The file cannot be read.
        """
        request = {"job": requests.selector(job, uid), **requests.table(plan, label)}
        return _kept(self._agent({"FirstPlanLoad": request})["FirstPlan"])

    def kept_plans(self) -> list[KeptPlan]:
        """Returns the plans that are kept for jobs that the caller may see."""
        return [_kept(plan) for plan in self._agent("FirstPlans")["FirstPlans"]]

    def forget(self, job: str, *, uid: Optional[int] = None) -> KeptPlan:
        """Removes the plan that is kept for a job, and returns it."""
        return _kept(self._agent({"FirstPlanDrop": requests.selector(job, uid)})["FirstPlan"])

    def profiles(self) -> list[StoredProfile]:
        """Returns the profiles that ``pfo-agent`` keeps and the caller may see."""
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
        """Returns a stored profile.

        Args:
            model: The model that was trained; the job's name unless the sweep named a model.
            uid: The user id of the job's owner; defaults to the caller's own.
            gpus: The models of the GPUs, as :class:`StoredProfile` has them; required to choose
                between several profiles.
            partition: How the model was divided among them; likewise.
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
        """Measures a running job at one clock after the other, from the highest down, and returns
        its profile.

        The call blocks for minutes, during which the job is slower; afterwards the job runs at
        default clocks. An interrupted sweep pauses, and the next call continues it.

        Args:
            job: The job's name.
            model: The name under which to store the profile; defaults to the job's name.
            steps: The number of steps to measure at each clock, 1 to 10,000; more where the energy
                counter needs them.
            settling_steps: The number of steps to leave out after each change of the clock, 1 to
                10,000.
            stride_mhz: The least distance of two clocks, in MHz.
            min_mhz: The lowest clock to try, in MHz.
            max_slowdown: End after the first clock at which a step takes more than this share
                longer than at default clocks, such as ``0.1``.
            reuse: Return a stored profile of the same model, GPUs and partition instead, if there
                is one.
            uid: The user id of the job's owner; defaults to the caller's own.

        Raises:
            NodeError: The sweep was stopped or paused, or ``pfo-agent`` refuses it.
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
        """Finds a plan for a running job, proves it on the job, and leaves the job running it, as
        ``pfoctl tune``.

        The call blocks for minutes, until the tune ends. ``pfo-agent`` runs the tune, also after
        this program has ended; :meth:`watch_tune` watches it again. Without a stored profile, the
        tune learns in a few steps what lower clocks do, or sweeps the job where it cannot.

        Args:
            job: The job's name.
            max_slowdown: The share by which a step may take longer than at default clocks, at most 1.
            profile: A profile, its file, or the contents of one as bytes; defaults to the stored
                one.
            order: An order file, or its contents as bytes; defaults to the order that the job runs.
            guard: Whether the agent keeps comparing the plan with default clocks afterwards.
            progress: A function to call with each change. By default, a notebook shows progress
                below the cell, and a terminal as a line.
            uid: The user id of the job's owner; defaults to the caller's own.
            terms: Further terms of ``pfoctl tune --set``, such as ``rounds=2`` or
                ``sweep_stride=60``.

        Raises:
            NodeError: The job cannot be tuned or is being tuned already, or its tune was stopped or
                has failed.
            OSError: A file cannot be read.
        """
        max_slowdown = requests.number("max_slowdown", max_slowdown, 0, "0.01 for 1 %")
        if max_slowdown > 1:
            raise NodeError(
                f"max_slowdown is {max_slowdown:g}, which lets steps take {1 + max_slowdown:g} times as long; "
                f"give {max_slowdown / 100:g} for {max_slowdown:g} %"
            )
        given = tuning.terms_of({"max_slowdown": max_slowdown, "guard": guard, **terms})
        order_to = {
            "job": requests.selector(job, uid),
            "terms": given,
            "profile": None if profile is None else list(requests.csv_of(profile)),
            "order": None if order is None else list(order if isinstance(order, bytes) else requests.contents(order)),
        }
        return self._watch(self._agent({"TuneStart": order_to}, wait=True)["Tune"], progress, uid)

    def watch_tune(
        self,
        job: str,
        *,
        progress: Optional[Callable[[TuneProgress], object]] = None,
        uid: Optional[int] = None,
    ) -> Tuned:
        """Waits for the end of a job's tune, whoever started it, as ``pfoctl tune --attach``. If it
        has ended, returns its result.

        Args:
            job: The job's name.
            progress: As of :meth:`tune`.
            uid: The user id of the job's owner; defaults to the caller's own.

        Raises:
            NodeError: The job was not tuned, or its tune was stopped or has failed.
        """
        return self._watch(self._tune_of(job, uid), progress, uid)

    def _watch(
        self,
        status: dict[str, Any],
        progress: Optional[Callable[[TuneProgress], object]],
        uid: Optional[int],
    ) -> Tuned:
        show = tuning.shown() if progress is None else progress
        show(tuning.progress_of(status))
        watch = {"job": requests.selector(status["job"], status["uid"] if uid is None else uid)}
        away_since_s: Optional[float] = None
        while not tuning.progress_of(status).is_over:
            try:
                request = {"TuneWatch": {**watch, "seen": status["changed"]}}
                status = ask(self.agent_socket, _native.agent_request_frame, request, _LOOK_S, "pfo-agent")["Tune"]
                show(tuning.progress_of(status))
                away_since_s = None
            except NoAnswer:
                # Nothing has changed; an agent that hangs does not answer this either.
                sweep = self._sweep_of(status)
                if sweep is not None:
                    show(tuning.progress_of_sweep(status, sweep))
            except Away:
                # A tune outlives a restart of the agent.
                now_s = time.monotonic()
                away_since_s = now_s if away_since_s is None else away_since_s
                if now_s - away_since_s > self.patience_s:
                    raise
                time.sleep(min(_LOOK_S, self.patience_s))
        return self._tuned(status, uid)

    def _sweep_of(self, status: dict[str, Any]) -> Optional[dict[str, Any]]:
        """The sweep that a tune waits for."""
        sweeps = self._agent("Sweeps")["Sweeps"]
        if status["state"] != "profile":
            return None
        return next((sweep for sweep in sweeps if sweep["job"] == status["job"] and "ended" not in sweep["state"]), None)

    def _tune_of(self, job: str, uid: Optional[int]) -> dict[str, Any]:
        """The last tune of a job: the caller's own, else that of the only other user."""
        found = [status for status in self._agent("Tunes")["Tunes"] if status["job"] == job]
        owners = {status["uid"] for status in found}
        if uid is None and len(owners) > 1 and os.getuid() not in owners:
            raise NodeError(f"users {sorted(owners)} have a job {job}; name one of them with uid")
        wanted = uid if uid is not None else os.getuid() if os.getuid() in owners else next(iter(owners), None)
        of_user: list[dict[str, Any]] = [status for status in found if status["uid"] == wanted]
        if not of_user:
            raise NodeError(f"job {job} was not tuned on this node; `Node.tune` does that")
        return of_user[-1]

    def tuned(self, job: str, *, uid: Optional[int] = None) -> Tuned:
        """Returns the result of the last tune of a job, whoever started it.

        Raises:
            NodeError: There was no tune, or it still runs, was stopped or has failed.
        """
        status = self._tune_of(job, uid)
        if not tuning.progress_of(status).is_over:
            raise NodeError(f"the tune of job {job} goes on; `Node.watch_tune` waits for its end")
        return self._tuned(status, uid)

    def _tuned(self, status: dict[str, Any], uid: Optional[int]) -> Tuned:
        refusal = tuning.refusal_of(status)
        if refusal is not None:
            raise NodeError(refusal)
        job = status["job"]
        owner = status["uid"] if uid is None else uid
        answer = self._agent({"TuneRead": requests.selector(job, owner)})["TuneReport"]
        return tuning.tuned(job, tuning.progress_of(status).state, answer)

    def tunes(self) -> list[TuneProgress]:
        """Returns the progress of every tune that ``pfo-agent`` knows and the caller may see."""
        return [tuning.progress_of(status) for status in self._agent("Tunes")["Tunes"]]

    def stop_tune(self, job: str, *, uid: Optional[int] = None) -> None:
        """Stops the tune of a job. The job changes to default clocks."""
        self._agent({"TuneStop": requests.selector(job, uid)}, wait=True)

    def guard(self, job: str, max_slowdown: Optional[float], *, uid: Optional[int] = None) -> None:
        """Has the agent compare a job's plan with default clocks now and then, and end a plan that
        takes longer.

        Args:
            job: The job's name.
            max_slowdown: The share by which a step may take longer, 0 to 100, such as ``0.01`` for
                1 %; None ends the guard.
            uid: The user id of the job's owner; defaults to the caller's own.
        """
        if max_slowdown is not None:
            max_slowdown = requests.number("max_slowdown", max_slowdown, 0, "0.01 for 1 %")
        self._agent({"Guard": {"job": requests.selector(job, uid), "max_slowdown": max_slowdown}})

    def load_frontier(
        self, job: str, frontier: Frontier, *, label: str = "from Python", uid: Optional[int] = None
    ) -> None:
        """Loads a frontier, from which the agent takes plans for stragglers of a job. :meth:`tune`
        does so by itself.

        Args:
            job: The job's name.
            frontier: The frontier.
            label: The name of the frontier in the status.
            uid: The user id of the job's owner; defaults to the caller's own.
        """
        content = {"label": label, "frontier": list(frontier.to_bytes())}
        self._agent({"FrontierLoad": {"job": requests.selector(job, uid), **content}})

    def straggler(
        self, job: str, slowdown: Optional[float], *, wait: bool = False, uid: Optional[int] = None
    ) -> Union[Swapped, FleetSwapped]:
        """Slows a job down to the pace of a straggler that it waits for anyway, which saves energy.

        Args:
            job: The job's name.
            slowdown: The straggler's iteration time as a multiple of the fastest one, at least 1,
                such as ``1.2``; None when the straggler is gone, and the job returns to what it ran
                before.
            wait: Return only when every rank has changed.
            uid: The user id of the job's owner; defaults to the caller's own.

        Raises:
            NodeError: The agent refuses, for example because no frontier is loaded for the job; and
                as of :meth:`swap`.
        """
        if slowdown is not None:
            slowdown = requests.number("slowdown", slowdown, 1, "1.2")
        request = {"job": requests.selector(job, uid), "slowdown": slowdown, "wait": wait}
        return self._swapped(self._agent({"Straggler": request}, wait), job, wait, uid)

    def answer_stragglers(self, job: str, on: bool = True, *, uid: Optional[int] = None) -> None:
        """Switches on or off that the agent slows a job down to ranks that it finds slow."""
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
        """Returns what plans have saved, by the ledger of the agent, as ``pfoctl savings``.

        Args:
            job: Count only jobs of this name.
            by: What each row stands for: ``"job"``, ``"user"``, ``"plan"``, ``"day"`` (UTC),
                ``"partition"`` (of the scheduler) or ``"model"`` (of the GPUs).
            since: Count only measurements from this time on, in seconds since 1970, as
                :func:`time.time` returns them; fractions are cut.
            until: Count only measurements before this time, likewise.
            uid: Count only jobs of this user id; defaults to all jobs that the caller may see.
        """
        if by not in SAVINGS_BY:
            raise NodeError(f"by is {by!r}; it must be one of {', '.join(SAVINGS_BY)}")
        query = {
            "job": None if job is None else requests.text("job", job),
            "uid": requests.user(uid),
            "since_unix_s": requests.time_s("since", since),
            "until_unix_s": requests.time_s("until", until),
            "by": by,
            "fleet_month": None,
        }
        return Savings.of_json(by, self._agent({"Savings": query})["Savings"])

    def p2p_power(self, job: str, *, uid: Optional[int] = None) -> list[float]:
        """Returns the P2P-blocking power of each stage of a job: what a GPU draws while it only
        waits, in watts.

        It has the stages of this node, by number, each with the mean over its ranks. The power is
        that of the rank's GPU if it was measured, else that of the GPU's model.

        Raises:
            NodeError: There is no such job on this node, or the power of a GPU is not known;
                ``pfoctl p2p measure`` measures it.
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
    """The job of a name. Raises :class:`NodeError` if there is none."""
    try:
        return status.job(name, uid)
    except KeyError as error:
        raise NodeError(error.args[0]) from None


def _kept(plan: dict[str, Any]) -> KeptPlan:
    refusal = plan["state"]["Refused"] if isinstance(plan["state"], dict) else None
    names = ("job", "uid", "label", "stages", "num_microbatches")
    state = plan["state"] if refusal is None else "Refused"
    return KeptPlan(**{name: plan[name] for name in names}, state=state, refusal=refusal)
