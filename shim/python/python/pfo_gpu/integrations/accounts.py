"""Compares what a step must run with what was reported."""

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
    """How to check a step of a followed object."""

    expected: Callable[[], Optional[Expected]] = lambda: None
    """Returns what the step that ends must have run; None if unknown."""
    reason: Callable[[], Optional[str]] = lambda: None
    """Returns why an instruction is missing; None if unknown."""


def difference(counts: Mapping[str, int], expected: Expected) -> dict[str, str]:
    """How the counted instructions of a step differ from the expected ones: by kind, in words."""
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
    """The same if the expectation is unknown: the first step must run at least one forward or
    backward."""
    if has_reported or _sum(counts, _FORWARDS) or _sum(counts, _BACKWARDS):
        return {}
    return {"forwards and backwards": "it ran no forward or backward in its first step"}


def _sum(counts: Mapping[str, int], times: Mapping[str, int]) -> int:
    return sum(counts.get(name, 0) * of_each for name, of_each in times.items())
