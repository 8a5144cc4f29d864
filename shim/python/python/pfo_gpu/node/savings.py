"""What plans have saved, as the ledger of ``pfo-agent`` has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

_KWH_J = 3.6e6

_COLUMNS = ("saved kWh", "from", "to", "saving", "steps", "hours")


@dataclass(frozen=True)
class SavedEnergy:
    """Steps under plans, their time and energy, and what they saved compared with default
    clocks."""

    name: str
    """The job, user, plan, day (its midnight UTC, in seconds since 1970), partition or model;
    ``"total"`` for all together, and empty if the ledger does not know it."""
    uid: Optional[int]
    """The owner of the job, where a row has one."""
    steps: int
    """The number of steps under plans."""
    time_s: float
    """The time of these steps, in seconds."""
    energy_j: float
    """The energy of these steps, in joules, of GPUs that have an energy counter."""
    saved_j: Optional[float]
    """The estimate of the saving, in joules; None if no plan was compared with default clocks at
    least twice."""
    low_j: Optional[float]
    """The lower end of its 95 % interval, in joules."""
    high_j: Optional[float]
    """The upper end of its 95 % interval, in joules."""
    is_shown: bool
    """Whether that interval excludes zero. If not, the saving may be nothing."""
    slowdown_s: Optional[float]
    """How much longer than at default clocks the steps of the compared part took, in seconds; below
    0 if shorter, None if nothing was compared."""
    compared_j: float
    """The part of ``energy_j``, in joules, under plans that were compared with default clocks at
    least twice."""

    @property
    def saving(self) -> Optional[float]:
        """The share of the energy at default clocks that the compared part saved; None if nothing
        was compared."""
        return None if self.saved_j is None else self.saved_j / (self.saved_j + self.compared_j)

    def _cells(self) -> tuple[object, ...]:
        kwh = [None if j is None else f"{j / _KWH_J:.4g}" for j in (self.saved_j, self.low_j, self.high_j)]
        saving = None if self.saving is None else f"{self.saving:.1%}"
        return (self.name, *kwh, saving, self.steps, f"{self.time_s / 3600:.2f}")


SAVINGS_BY = ("job", "user", "plan", "day", "partition", "model")


@dataclass(frozen=True)
class Savings:
    """What plans have saved."""

    by: str
    """What rows stand for, as :meth:`Node.savings` takes it."""
    rows: list[SavedEnergy]
    """One row for each job, user, plan, day, partition or model."""
    total: SavedEnergy
    """All rows together. Its interval is not the sum of theirs, because their errors are not
    independent."""
    problem: Optional[str]
    """Why the ledger is not complete or not kept on disk; None if all is well."""

    @classmethod
    def of_json(cls, by: str, report: dict[str, Any]) -> Savings:
        """The report in an answer."""
        rows = [_saved(_name(by, row), row["uid"], row["savings"]) for row in report["rows"]]
        return cls(by, rows, _saved("total", None, report["total"]), report["ledger_problem"])

    def _repr_html_(self) -> str:
        from pfo_gpu.html import grid

        return grid((self.by, *_COLUMNS), [row._cells() for row in (*self.rows, self.total)])


def _name(by: str, row: dict[str, Any]) -> str:
    name = row[{"user": "uid", "day": "day_unix_s"}.get(by, by)]
    return "" if name is None else str(name)


def _saved(name: str, uid: Optional[int], savings: dict[str, Any]) -> SavedEnergy:
    saved = savings["saved"] or {}
    return SavedEnergy(
        name=name,
        uid=uid,
        saved_j=saved.get("estimate_j"),
        low_j=saved.get("low_j"),
        high_j=saved.get("high_j"),
        is_shown=bool(saved.get("shown")),
        **{field: savings[field] for field in ("steps", "time_s", "energy_j", "slowdown_s", "compared_j")},
    )
