"""All plans of a pipeline."""

from __future__ import annotations

import operator
from typing import Any, Iterable, Iterator, Optional, Sequence, SupportsIndex, Union, overload

from pfo_gpu import _native
from pfo_gpu.planner import files, pictures
from pfo_gpu.planner.optional import imported
from pfo_gpu.planner.plans import Plan
from pfo_gpu.planner.profile import Profile


class Frontier:
    """The plans of a pipeline, fastest first.

    :func:`pfo_gpu.plan` makes a frontier, :meth:`read` reads a file of ``pfoctl plan optimize``,
    and :meth:`of_plans` collects plans of other planners. From each plan of :attr:`points` to the
    next, time rises and energy falls. ``len(frontier)``, ``frontier[i]``, slices and iteration also
    have the slower plans for pipelines that wait for a straggler. Each of these takes more energy
    than a faster plan, but less than that plan with the wait until its time.
    """

    def __init__(self, native: _native.Frontier) -> None:
        self._native = native

    @classmethod
    def read(cls, path: files.PathLike) -> Frontier:
        """Reads a frontier file.

        Raises:
            PlanError: The file is no frontier file, or damaged.
            OSError: The file cannot be read.
        """
        contents = files.read(path)
        with files.named(path):
            return cls.from_bytes(contents)

    @classmethod
    def from_bytes(cls, contents: bytes) -> Frontier:
        """Reads a frontier from the contents of its file. Raises :class:`PlanError` as :meth:`read`
        does."""
        return cls(_native.Frontier.from_bytes(contents))

    @classmethod
    def of_plans(
        cls,
        plans: Iterable[Plan],
        profile: Profile,
        *,
        p2p_power: Union[float, Sequence[float]],
        gpu: Optional[str] = None,
    ) -> Frontier:
        """Makes a frontier of plans of other planners for one pipeline, such as lowtime's.

        Time and energy of the plans are replayed over the profile. A plan that takes no less energy
        than a faster one with the wait until its time is left out.

        Args:
            plans: The plans, at least one.
            profile: A profile with every clock of the plans.
            p2p_power: The power of a GPU that waits, in watts, or that of each stage.
            gpu: The GPU model of the profile.

        Raises:
            PlanError: There is no plan, the plans are for different pipelines, or the profile lacks
                a clock.
            TypeError: ``p2p_power`` is of another type.
        """
        given = [plan._native for plan in plans]
        return cls(
            _native.Frontier.of_plans(profile._native, given, p2p_power=p2p_power, gpu=gpu)
        )

    def to_bytes(self) -> bytes:
        """Returns the contents of a frontier file."""
        return self._native.to_bytes()

    def write(self, path: files.PathLike) -> None:
        """Writes the frontier to a file, which ``pfoctl`` reads, too. Raises ``OSError`` if it
        cannot."""
        files.write(path, self.to_bytes())

    def at(
        self,
        deadline: Union[str, float],
        *,
        polish_s: float = 0.0,
        confidence: Union[str, float, None] = None,
    ) -> Plan:
        """Makes the plan of least energy for an iteration time, counting the wait until then.

        It searches from the plans of the frontier, as ``pfoctl plan export`` does. Beyond the time
        of least energy, the plan is for a pipeline that waits for a straggler. Ctrl-C interrupts
        the search, except with ``confidence``.

        Args:
            deadline: The longest iteration time: seconds (``3.1``, ``"3.1s"``, ``"310ms"``), a
                factor of the fastest time (``"1.02x"``), ``"fastest"`` or ``"min-energy"``.
            polish_s: How long to improve the plan further, in seconds, on all cores. Requires a
                frontier with ``clock_per="instruction"``.
            confidence: The share of its steps in which the plan keeps the deadline, from 50 % to
                99.9 %, such as ``"95%"`` or ``0.95``, though instructions scatter and drift.
                Without it, about half of the steps are late by a little.

        Raises:
            PlanError: The deadline is shorter than the fastest plan, not even the fastest plan
                keeps it with the confidence, or an argument is invalid. So is a number without a
                unit from 1 to 2 that is no time between the fastest plan and the one of least
                energy: it may be meant as a factor.
            ValueError: Both ``polish_s`` and ``confidence`` are given.
        """
        if confidence is not None:
            if polish_s:
                raise ValueError("a plan with a confidence is not polished; give polish_s or confidence")
            return Plan(self._native.plan_with_confidence(str(deadline), str(confidence)))
        if polish_s:
            return Plan(self._native.polished(str(deadline), polish_s))
        return Plan(self._native.plan_for(str(deadline)))

    def plans_of(self, policy: str) -> list[Plan]:
        """Makes the plans that another system considers on the same profile, first the one that it
        would run.

        These are the plans of ``pfoctl plan compare``; their predictions are replays. Ctrl-C
        interrupts.

        Args:
            policy: The name of the system, such as ``"all-max"``, ``"envpipe-offline"`` (EnvPipe as
                Perseus' evaluation computes it), ``"zeus-global"`` or ``"lowtime-perseus"``.

        Raises:
            PlanError: The name is unknown (the message lists all names), or the system has no plan.
        """
        return [Plan(plan) for plan in self._native.plans_of(policy)]

    def seconds(self, deadline: Union[str, float]) -> float:
        """Converts a deadline of :meth:`at` to seconds. Raises :class:`PlanError` if it is
        invalid."""
        return self._native.seconds(str(deadline))

    def energy_until(self, plan: Plan, time_s: float) -> float:
        """The energy of a step of a plan, in joules, with the wait until ``time_s`` (in seconds) at
        the P2P-blocking power; not a number (nan) if the plan has no prediction."""
        return self._native.energy_until_j(plan._native, time_s)

    def interval(
        self, plan: Plan, *, measured_step_s: Optional[float] = None
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Returns the intervals in which time (s) and energy (J) of a plan are expected: two ends
        of each.

        They cover the planned instructions. What else a step does, such as transfers, loads, the
        reduction of gradients and the optimizer, comes on top, unless ``measured_step_s`` is given.

        Args:
            plan: A plan for the pipeline of this frontier.
            measured_step_s: The measured time of a step of the job at default clocks, in seconds.
                The part of it that is in no instruction is then added.

        Raises:
            PlanError: The plan is for another pipeline, more than a quarter of the measured step is
                in no instruction, or the measured step is shorter than its instructions or no valid
                time.
        """
        time_s, energy_j = self._native.interval(plan._native, measured_step_s)
        return (time_s[0], time_s[1]), (energy_j[0], energy_j[1])

    def bound(self) -> _native.Bound:
        """Computes the least energy that any plan can take, for every iteration time.

        The bound is exact for instructions that may change between measured clocks at any moment.
        No plan takes less. Ctrl-C interrupts.
        """
        return self._native.bound()

    @property
    def fastest_s(self) -> float:
        """The iteration time of the fastest plan, in seconds."""
        return self.seconds("fastest")

    @property
    def cheapest_s(self) -> float:
        """The iteration time of the plan of least energy, in seconds."""
        return self.seconds("min-energy")

    @property
    def points(self) -> list[tuple[float, float]]:
        """Time (s) and energy (J) of the plans from the fastest to the one of least energy."""
        return self._native.points()

    @property
    def beyond_min_energy(self) -> list[tuple[float, float]]:
        """Time (s) and energy (J) of the slower plans, for pipelines that wait for a straggler."""
        cheapest_s = self.cheapest_s
        return [plan for plan in self._native.plans() if plan[0] > cheapest_s]

    @property
    def gpu(self) -> Optional[str]:
        """The GPU model that was profiled, if it is known."""
        return self._native.gpu

    @property
    def p2p_power_w(self) -> float:
        """The P2P-blocking power: what a GPU draws while it only waits for its neighbour stage, in
        watts; the mean of the stages."""
        return self._native.p2p_power_w

    @property
    def p2p_power_by_stage_w(self) -> list[float]:
        """The P2P-blocking power of each stage, in watts; stages on different GPU models may
        differ."""
        return self._native.p2p_power_by_stage_w

    @property
    def site_power_w(self) -> float:
        """What host, fans and cooling draw for each GPU, in watts; 0 if it was not given."""
        return self._native.site_power_w

    @property
    def schedule(self) -> str:
        """The schedule that the stages run."""
        return self._native.schedule

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return self._native.num_stages

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches of a step."""
        return self._native.num_microbatches

    def to_pandas(self) -> Any:
        """Returns all plans, fastest first, as a :class:`pandas.DataFrame`; requires pandas.

        The columns are ``time_s`` and ``energy_j`` of a step, ``slowdown`` and ``saving`` compared with
        the fastest plan as shares, and ``bound_j``, the lower bound of the energy for this time.
        """
        pandas = imported("pandas", "Frontier.to_pandas")
        table = pandas.DataFrame(self._native.plans(), columns=["time_s", "energy_j"])
        bound = self.bound()
        table["slowdown"] = table["time_s"] / table["time_s"].iloc[0] - 1
        table["saving"] = 1 - table["energy_j"] / table["energy_j"].iloc[0]
        table["bound_j"] = [bound.energy_j(time_s) for time_s in table["time_s"]]
        return table

    def plot(self, axes: Any = None, *, label: Optional[str] = None) -> Any:
        """Draws the plans, the lower bound, and the plans for stragglers; returns the axes.
        Requires matplotlib.

        Args:
            axes: The :class:`matplotlib.axes.Axes` to draw into; defaults to the current ones.
            label: The name of the plans in the legend.
        """
        return pictures.frontier(self, axes, label)

    def __len__(self) -> int:
        return len(self._native)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Plan: ...

    @overload
    def __getitem__(self, place: slice) -> list[Plan]: ...

    def __getitem__(self, place: Union[SupportsIndex, slice]) -> Union[Plan, list[Plan]]:
        count = len(self)
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(count))]
        place = operator.index(place)
        if not -count <= place < count:
            raise IndexError(f"the frontier has no plan {place}; it has {count} plans")
        return Plan(self._native.plan(place % count))

    def __iter__(self) -> Iterator[Plan]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Frontier) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def _repr_html_(self) -> str:
        from pfo_gpu import html

        picture = html.curve(self.points, "iteration time (s)", "energy of a step (J)")
        return f"<p>{html.escaped(repr(self)[1:-1])}</p>{picture}"

    def __reduce__(self) -> tuple[object, ...]:
        return Frontier.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        points = self.points
        (fastest_s, most_j), (cheapest_s, least_j) = points[0], points[-1]
        others = len(self) - len(points)
        return (
            f"<pfo_gpu.Frontier of {len(points)} plans, {fastest_s:.4g} s {most_j:.5g} J (fastest) to "
            f"{cheapest_s:.4g} s {least_j:.5g} J (least energy)"
            f"{f', and {others} for stragglers' if others else ''}>"
        )


def _bound_of(contents: bytes) -> _native.Bound:
    """The bound of a frontier, as a pickled one is made again."""
    return Frontier.from_bytes(contents).bound()
