"""One plan."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from pfo_gpu import _native
from pfo_gpu.planner import files
from pfo_gpu.planner.optional import imported
from pfo_gpu.planner.profile import Profile


class Plan:
    """One clock for every instruction of a step, per stage.

    :meth:`Frontier.at` makes plans, and :meth:`read` reads those of pfo, lowtime, Perseus and Zeus.
    """

    def __init__(self, native: _native.Plan) -> None:
        self._native = native

    @classmethod
    def read(
        cls,
        path: files.PathLike,
        profile: Union[Profile, files.PathLike, bytes, Any, None] = None,
        schedule: str = "1f1b",
    ) -> Plan:
        """Reads a plan file: ``pfo-plan/1`` JSON, or Python lists of lowtime, Perseus or Zeus.

        Such Python files say neither what they were made from nor their order: they require the
        profile (a :class:`Profile`, or what one is made from, as Zeus' CSV file), and the schedule with its
        default settings. What they claim is ignored. A clock of 0, with which Zeus leaves the clock as it is, is
        that of the instruction before.

        Raises:
            PlanError: The file is no plan, or does not fit the profile; the error names the place.
            OSError: The file cannot be read.
        """
        contents = files.read(path)
        with files.named(path):
            return cls.from_bytes(contents, profile, schedule)

    @classmethod
    def from_bytes(
        cls,
        contents: bytes,
        profile: Union[Profile, files.PathLike, bytes, Any, None] = None,
        schedule: str = "1f1b",
    ) -> Plan:
        """A plan from the contents of its file, as :meth:`read` reads it."""
        if profile is not None and not isinstance(profile, Profile):
            profile = Profile(profile)
        measured = None if profile is None else profile._native
        return cls(_native.Plan.from_bytes(contents, measured, schedule))

    def to_text(self, format: str = "pfo") -> str:
        """The plan as a file: ``"pfo"`` (JSON), ``"lowtime"`` (lists of MHz), ``"zeus"`` (lists of names and
        MHz) or ``"payloads"`` (what Kareus has beside that)."""
        return self._native.to_text(format)

    def write(self, path: files.PathLike, format: str = "pfo") -> None:
        """Writes the plan to a file, in a format of :meth:`to_text`."""
        files.write(path, self.to_text(format).encode())

    def with_payloads(self, payloads: Union[files.PathLike, bytes]) -> Plan:
        """The plan with what Kareus gives each instruction beside its clock.

        Args:
            payloads: Its file ``scheds_pipeline_*.py`` of the number of the plan, or the contents as bytes.

        Raises:
            PlanError: The file is for another plan; the error names the place.
            OSError: The file cannot be read.
        """
        if isinstance(payloads, bytes):
            return Plan(self._native.with_payloads(payloads))
        with files.named(payloads):
            return Plan(self._native.with_payloads(files.read(payloads)))

    def payloads(self) -> list[list[Optional[str]]]:
        """For each stage what its instructions get beside their clocks, in the order in which it runs them;
        None for those that get nothing. Of Kareus, its values, separated by commas."""
        known = {known[:-1]: known[-1] for known in self._native.payloads()}
        payloads: list[list[Optional[str]]] = [[] for _ in range(self.num_stages)]
        for planned in self._native.instructions():
            payloads[planned[0]].append(known.get(planned[:-1]))
        return payloads

    def replay(
        self, profile: Profile, p2p_power: Union[float, Sequence[float], None] = None
    ) -> tuple[float, float]:
        """Time (s) and energy (J) of a step of this plan over a profile, whatever the plan claims.

        Args:
            profile: What its instructions take; it must have every clock of the plan.
            p2p_power: What a GPU draws while it waits, in watts, or that of each stage; else what the plan
                says.
        """
        return self._native.replay(profile._native, p2p_power)

    @property
    def time_s(self) -> Optional[float]:
        """Predicted seconds of a step; None if the plan has no prediction."""
        predicted = self._native.predicted
        return None if predicted is None else predicted[0]

    @property
    def energy_j(self) -> Optional[float]:
        """Predicted joules of a step, of all stages; None if the plan has no prediction."""
        predicted = self._native.predicted
        return None if predicted is None else predicted[1]

    @property
    def gpu(self) -> Optional[str]:
        """The GPU model that was profiled, if it is known."""
        return self._native.gpu

    @property
    def schedule(self) -> str:
        """The schedule of its order."""
        return self._native.schedule

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return self._native.num_stages

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches of a step."""
        return self._native.num_microbatches

    def clocks(self) -> list[list[int]]:
        """For each stage the clocks (MHz) of its instructions, in the order in which it runs them."""
        clocks: list[list[int]] = [[] for _ in range(self.num_stages)]
        for stage, *_, mhz in self._native.instructions():
            clocks[stage].append(mhz)
        return clocks

    def to_pandas(self) -> Any:
        """Its instructions stage by stage, in their order, as a :class:`pandas.DataFrame` with the
        columns ``stage``, ``instruction``, ``microbatch``, ``chunk`` and ``frequency`` (MHz)."""
        columns = ["stage", "instruction", "microbatch", "chunk", "frequency"]
        pandas = imported("pandas", "Plan.to_pandas")
        return pandas.DataFrame(self._native.instructions(), columns=columns)

    def __eq__(self, other: object) -> bool:
        return self.to_text() == other.to_text() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_text())

    def _repr_html_(self) -> str:
        from pfo_gpu import html

        clocks = [sorted(set(of_stage)) for of_stage in self.clocks()]
        rows = [
            (stage, len(of_stage), f"{of_stage[0]} to {of_stage[-1]}" if of_stage else None)
            for stage, of_stage in enumerate(clocks)
        ]
        return f"<p>{html.escaped(repr(self)[1:-1])}</p>" + html.grid(["stage", "clocks", "MHz"], rows)

    def __reduce__(self) -> tuple[object, ...]:
        return Plan.from_bytes, (self.to_text().encode(),)

    def __repr__(self) -> str:
        predicted = self._native.predicted
        cost = "" if predicted is None else f": {predicted[0]:.4g} s, {predicted[1]:.5g} J"
        size = f"{self.num_stages} stages, {self.num_microbatches} microbatches"
        return f"<pfo_gpu.Plan of {size}, {self.schedule}{cost}>"
