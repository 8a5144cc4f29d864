"""Checks whole numbers of callers, which may be Python's or NumPy's."""

from __future__ import annotations

import operator
from typing import Iterable, SupportsIndex, Union

from pfo_gpu._native import PlanError


def count(name: str, number: SupportsIndex, bits: int = 32) -> int:
    """Checks that a whole number is from 0 to 2**bits - 1. The planner checks its meaning.

    Raises:
        TypeError: It is no whole number.
        PlanError: It is out of range.
    """
    try:
        whole = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is {number!r}; it must be a whole number") from None
    if whole < 0:
        raise PlanError(f"{name} is {whole}; it must not be negative")
    if whole >= 1 << bits:
        raise PlanError(f"{name} is {whole}; it must be less than {1 << bits}")
    return whole


def counts(name: str, numbers: Union[SupportsIndex, Iterable[SupportsIndex]]) -> list[int]:
    """The same for one number, or several."""
    several = numbers if isinstance(numbers, Iterable) else [numbers]
    return [count(name, number) for number in several]
