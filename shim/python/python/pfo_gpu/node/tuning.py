"""Starts a tune by ``pfo-agent``, watches it, and reads its result."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Optional

from pfo_gpu._native import NodeError

if TYPE_CHECKING:
    from pfo_gpu.planner import Frontier, Plan


@dataclass(frozen=True)
class TuneProgress:
    """A tune, and how far it is."""

    job: str
    """The job."""
    state: str
    """What the tune does: ``"profile"``, ``"calibration"``, ``"default_clocks"``, ``"planning"``,
    ``"search"``, ``"proof"``; or how it ended: ``"kept"``, ``"kept_uncertain"`` (the slowdown is
    most likely, but not certainly, within the limit), ``"nothing_kept"``, ``"stopped"``,
    ``"failed"``."""
    is_over: bool
    """Whether it has ended."""
    now: str
    """The current work, in words."""
    done: float
    """The share of this work that is done, 0 to 1."""
    remaining_s: Optional[float]
    """How long this work will still take, in seconds; None if unknown."""
    saving: Optional[float]
    """The share of energy that the best plan so far saves; None before there is one."""
    remarks: list[str]
    """Remarks for people, oldest first."""

    def __str__(self) -> str:
        left = "" if self.remaining_s is None else f", {self.remaining_s:.0f} s left"
        return f"{self.job}: {self.now} ({self.done:.0%}{left})"


@dataclass(frozen=True)
class Tuned:
    """The result of a tune."""

    job: str
    """The job."""
    report: dict[str, Any] = field(hash=False)
    """Everything that was measured and decided, as ``pfoctl tune --json`` prints it."""
    plan: Optional[Plan] = field(hash=False)
    """The plan that the job runs; None at default clocks and under power limits."""
    frontier: Optional[Frontier] = field(hash=False)
    """The frontier that the plan is from, if any."""
    is_certain: bool
    """Whether the measurements prove that the plan keeps the allowed slowdown. False if that is
    only most likely, and at default clocks."""

    @property
    def kept(self) -> Optional[str]:
        """The label of the plan or power limits that the job runs; None at default clocks."""
        kept = self.report["kept"]
        return None if kept is None else str(kept["label"])

    @property
    def saving(self) -> Optional[float]:
        """The share of a step's energy that the plan saves; None at default clocks or if not
        measured."""
        return self._of_kept("saving")

    @property
    def slowdown(self) -> Optional[float]:
        """The share by which a step takes longer under the plan; None at default clocks or if not
        measured."""
        return self._of_kept("slowdown")

    def _of_kept(self, what: str) -> Optional[float]:
        found = [tried.get(what) for tried in self.report["tried"] if tried["plan"] == self.kept]
        if not found or found[-1] is None:
            return None
        figure = found[-1]
        return float(figure["estimate"] if isinstance(figure, dict) else figure)

    def __repr__(self) -> str:
        if self.kept is None:
            return f"<pfo_gpu.Tuned {self.job}: no plan is better than default clocks>"
        figures = [
            f"{name} {figure:.1%}"
            for name, figure in (("saves", self.saving), ("slower by", self.slowdown))
            if figure is not None
        ]
        certainty = "" if self.is_certain else ", most likely but not certainly within the allowed slowdown"
        return f"<pfo_gpu.Tuned {self.job}: runs {self.kept}, {', '.join(figures)}{certainty}>"

    def _repr_html_(self) -> str:
        from pfo_gpu.html import table

        default = self.report["default_clocks"]
        rows = [
            ("job", self.job),
            ("runs", self.kept or "default clocks"),
            ("saving", None if self.saving is None else f"{self.saving:.1%}"),
            ("slowdown", None if self.slowdown is None else f"{self.slowdown:.2%}"),
            ("step at default clocks", f"{default['iteration_time_s']:.4g} s, {default['iteration_energy_j']:.5g} J"),
        ]
        picture = "" if self.frontier is None else self.frontier._repr_html_()
        return table("tuned", rows) + picture


def progress_of(status: dict[str, Any]) -> TuneProgress:
    """The progress in an answer."""
    state = status["state"]
    end = state.get("ended") if isinstance(state, dict) else None
    if isinstance(end, dict):
        end = next(iter(end))
    return TuneProgress(
        is_over=end is not None,
        state=str(end or state),
        **{name: status[name] for name in ("job", "now", "done", "remaining_s", "saving", "remarks")},
    )


def progress_of_sweep(status: dict[str, Any], sweep: dict[str, Any]) -> TuneProgress:
    """The progress of a tune that waits for a sweep."""
    state, clocks = sweep["state"], max(1, sweep["clocks"])
    waits = state.get("waiting") if isinstance(state, dict) else None
    now = f"a sweep measures {sweep['measured']} of {clocks} clocks" if waits is None else f"the sweep waits: {waits['why']}"
    return replace(progress_of(status), now=now, done=sweep["measured"] / clocks, remaining_s=sweep["remaining_s"])


def refusal_of(status: dict[str, Any]) -> Optional[str]:
    """Why a tune was stopped or has failed; None otherwise."""
    state = status["state"]
    end = state.get("ended") if isinstance(state, dict) else None
    if end == "stopped":
        return f"the tune of job {status['job']} was stopped"
    if not isinstance(end, dict):
        return None
    refusal = end["failed"]
    return "; ".join(part for part in (refusal["message"], refusal["remedy"]) if part)


def tuned(job: str, state: str, answer: dict[str, Any]) -> Tuned:
    """The report in an answer."""
    from pfo_gpu.planner import Frontier, Plan

    plan, frontier = answer["plan"], answer["frontier"]
    return Tuned(
        job=job,
        report=json.loads(bytes(answer["report"])),
        plan=None if plan is None else Plan.from_bytes(bytes(plan)),
        frontier=None if frontier is None else Frontier.from_bytes(bytes(frontier)),
        is_certain=state == "kept",
    )


def terms_of(given: dict[str, object]) -> list[int]:
    """The terms as JSON, in bytes. Raises :class:`NodeError` if JSON cannot hold one."""
    try:
        return list(json.dumps({name: value for name, value in given.items() if value is not None}).encode())
    except TypeError as error:
        raise NodeError(f"the terms {sorted(given)} are not plain values: {error}") from None


def shown() -> Callable[[TuneProgress], object]:
    """A function that shows progress: below the cell of a notebook, else as a line on a terminal,
    else nowhere."""
    interactive = sys.modules.get("IPython")
    shell = getattr(interactive, "get_ipython", lambda: None)()
    if getattr(getattr(shell, "kernel", None), "session", None) is not None:
        handle = _display()(_Line("waiting for pfo-agent"), display_id=True)
        return lambda progress: handle.update(_Line(str(progress), progress.done))
    if not sys.stderr.isatty():
        return lambda _progress: None

    def line(progress: TuneProgress) -> None:
        end = "\n" if progress.is_over else ""
        print(f"\r\x1b[K{progress}", end=end, file=sys.stderr, flush=True)

    return line


def _display() -> Any:
    # A notebook has it; nothing else needs it.
    return importlib.import_module("IPython.display").display


class _Line:
    """A line of progress, as a notebook shows it."""

    def __init__(self, text: str, done: float = 0.0) -> None:
        self._text, self._done = text, done

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        from pfo_gpu.html import escaped

        return f'<progress value="{self._done:.3f}" max="1"></progress> {escaped(self._text)}'
