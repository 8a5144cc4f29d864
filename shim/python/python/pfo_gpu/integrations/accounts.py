"""What a step must run, and what of it was reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable, NamedTuple, Optional

# How many forwards and backwards an instruction of a name is. A split backward is counted by the part that
# other stages wait for.
_FORWARDS = {"forward": 1, "forward_backward": 1}
_BACKWARDS = {"backward": 1, "backward_input": 1, "forward_backward": 1}


class Expected(NamedTuple):
    """The forwards and backwards of a step of this rank."""

    forwards: int
    backwards: int


class Account(NamedTuple):
    """How to account for a step of something."""

    expected: Callable[[], Optional[Expected]] = lambda: None
    """Returns what the step that ends must have run; None if that is not known."""
    reason: Callable[[], Optional[str]] = lambda: None
    """Returns why something is missing, if that can be found out."""


def difference(counts: Mapping[str, int], expected: Expected) -> dict[str, str]:
    """How the counted instructions of a step differ from what it must run: for each kind, in words."""
    wanted = {
        "forwards": (_sum(counts, _FORWARDS), expected.forwards),
        "backwards": (_sum(counts, _BACKWARDS), expected.backwards),
        "weight parts of split backwards": (counts.get("backward_weight", 0), counts.get("backward_input", 0)),
    }
    return {
        kind: f"{of - counted} of {of} {kind} are missing"
        if counted < of
        else f"{counted} {kind} were reported where {of} run"
        for kind, (counted, of) in wanted.items()
        if counted != of
    }


def nothing_of(counts: Mapping[str, int], has_reported: bool) -> dict[str, str]:
    """The same where nothing says what a step must run: its first one runs a forward or a backward at least."""
    if has_reported or _sum(counts, _FORWARDS) or _sum(counts, _BACKWARDS):
        return {}
    return {"forwards and backwards": "it ran no forward or backward in its first step"}


def _sum(counts: Mapping[str, int], times: Mapping[str, int]) -> int:
    return sum(counts.get(name, 0) * of_each for name, of_each in times.items())
