"""What is logged once, whichever thread comes to it first."""

from __future__ import annotations


class Once:
    """What has been said already."""

    def __init__(self) -> None:
        self._said: dict[str, object] = {}

    def is_first(self, what: str) -> bool:
        """Whether nobody has asked this of it before."""
        # One operation of the interpreter. A lock that another thread holds while the process forks would stay held.
        mark = object()
        return self._said.setdefault(what, mark) is mark

    def clear(self) -> None:
        self._said.clear()

    def __len__(self) -> int:
        return len(self._said)
