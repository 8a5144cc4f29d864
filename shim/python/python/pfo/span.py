"""A begin and its end: around a block, or around each call of a function."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Callable


class Span(ContextDecorator):
    """Begins where it is entered and ends where it is left, also by an exception.

    Used as a decorator it does so around each call of the function.
    """

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *exception: object) -> None:
        self._end()
