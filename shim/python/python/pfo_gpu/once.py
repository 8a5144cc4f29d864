"""Keeps threads from logging the same twice."""

from __future__ import annotations


class Once:
    """A set of texts that have been logged."""

    def __init__(self) -> None:
        self._said: dict[str, object] = {}

    def is_first(self, what: str) -> bool:
        """Adds a text; returns whether it is new. Safe in threads and after a fork."""
        # One operation of the interpreter. A lock that another thread holds while the process forks would stay held.
        mark = object()
        return self._said.setdefault(what, mark) is mark

    def clear(self) -> None:
        self._said.clear()

    def __len__(self) -> int:
        return len(self._said)
