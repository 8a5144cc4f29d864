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

        Args:
            path: The file.
            profile: The profile that the plan was made from, as a :class:`Profile` or whatever
                :class:`Profile` reads, such as Zeus' CSV file. Only Python files require it,
                because they hold clocks alone; comments in them are ignored.
            schedule: The schedule of a Python file, with its default settings.

        A clock of 0, with which Zeus leaves the clock as it is, becomes that of the previous
        instruction.

        Raises:
            PlanError: The file is no plan, or does not fit the profile; the message names the
                place.
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
        """Reads a plan from the contents of its file. Arguments and errors are those of
        :meth:`read`."""
        if profile is not None and not isinstance(profile, Profile):
            profile = Profile(profile)
        measured = None if profile is None else profile._native
        return cls(_native.Plan.from_bytes(contents, measured, schedule))

    def to_text(self, format: str = "pfo") -> str:
        """Returns the plan as text of a file.

        Args:
            format: ``"pfo"`` (``pfo-plan/1`` JSON), ``"lowtime"`` (lists of MHz), ``"zeus"`` (lists
                of names and MHz) or ``"payloads"`` (Kareus' file of what instructions get beside
                clocks).

        Raises:
            PlanError: The format is unknown, or an instruction lacks the payload that Kareus' file
                requires.
        """
        return self._native.to_text(format)

    def write(self, path: files.PathLike, format: str = "pfo") -> None:
        """Writes the plan to a file, in a format of :meth:`to_text`. Raises ``OSError`` if it
        cannot."""
        files.write(path, self.to_text(format).encode())

    def with_payloads(self, payloads: Union[files.PathLike, bytes]) -> Plan:
        """Returns the plan with Kareus' payloads: what an instruction gets beside its clock.

        Args:
            payloads: Kareus' file ``scheds_pipeline_*.py`` with the number of this plan, or its
                contents as bytes.

        Raises:
            PlanError: The file is invalid, or for another plan; the message names the place.
            OSError: The file cannot be read.
        """
        if isinstance(payloads, bytes):
            return Plan(self._native.with_payloads(payloads))
        with files.named(payloads):
            return Plan(self._native.with_payloads(files.read(payloads)))

    def payloads(self) -> list[list[Optional[str]]]:
        """Returns, for each stage, the payloads of its instructions in the order in which it runs
        them: the values of Kareus, separated by commas; None for an instruction without one."""
        known = {known[:-1]: known[-1] for known in self._native.payloads()}
        payloads: list[list[Optional[str]]] = [[] for _ in range(self.num_stages)]
        for planned in self._native.instructions():
            payloads[planned[0]].append(known.get(planned[:-1]))
        return payloads

    def replay(
        self, profile: Profile, p2p_power: Union[float, Sequence[float], None] = None
    ) -> tuple[float, float]:
        """Computes time (s) and energy (J) of a step of this plan over a profile. The plan's own
        prediction is ignored.

        Args:
            profile: Time and energy of the instructions; it must have every clock of the plan.
            p2p_power: The power of a GPU that waits, in watts, or that of each stage; defaults to
                that in the plan.

        Raises:
            PlanError: The profile does not fit the plan, or neither the call nor the plan gives the
                power.
            TypeError: ``p2p_power`` is of another type.
        """
        return self._native.replay(profile._native, p2p_power)

    @property
    def time_s(self) -> Optional[float]:
        """The predicted time of a step, in seconds; None if the plan has no prediction."""
        predicted = self._native.predicted
        return None if predicted is None else predicted[0]

    @property
    def energy_j(self) -> Optional[float]:
        """The predicted energy of a step, of all stages, in joules; None if the plan has no
        prediction."""
        predicted = self._native.predicted
        return None if predicted is None else predicted[1]

    @property
    def gpu(self) -> Optional[str]:
        """The GPU model that was profiled, if it is known."""
        return self._native.gpu

    @property
    def schedule(self) -> str:
        """The schedule that the stages run; ``"custom"`` if the order is from a file."""
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
        """Returns, for each stage, the clocks (MHz) of its instructions in the order in which it
        runs them."""
        clocks: list[list[int]] = [[] for _ in range(self.num_stages)]
        for stage, *_, mhz in self._native.instructions():
            clocks[stage].append(mhz)
        return clocks

    def to_pandas(self) -> Any:
        """Returns the instructions stage by stage, in their order, as a :class:`pandas.DataFrame`
        with the columns ``stage``, ``instruction``, ``microbatch``, ``chunk`` and ``frequency``
        (MHz). Requires pandas."""
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
