"""A begin and its end: around a block, or around each call of a function."""

from __future__ import annotations

import inspect
from contextlib import ContextDecorator
from functools import partial
from typing import Any, Callable, TypeVar

_Run = TypeVar("_Run", bound=Callable[..., Any])


class Span(ContextDecorator):
    """Reports a begin when it is entered and the end when it is left, also by an exception.

    As a decorator, it does so around each call of the function. Decorating a generator or coroutine
    function raises ``TypeError``: its call returns before its work begins.
    """

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end

    def __call__(self, func: _Run) -> _Run:
        if returns_before_its_work(func):
            raise TypeError(
                f"{getattr(func, '__qualname__', repr(func))} is a generator or coroutine function: its call returns"
                " before its work begins; use `with` inside it"
            )
        return super().__call__(func)

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *exception: object) -> None:
        self._end()


def returns_before_its_work(func: Callable[..., Any]) -> bool:
    """Whether a function is a generator or coroutine function, whose call returns before its work
    begins."""
    while isinstance(func, partial):
        func = func.func
    # An object that is called is as its method.
    called = getattr(type(func), "__call__", None)
    return any(
        inspect.isgeneratorfunction(of) or inspect.iscoroutinefunction(of) or inspect.isasyncgenfunction(of)
        for of in (func, called)
    )
