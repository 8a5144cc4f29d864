"""How long the instructions of a rank take on its simulated GPU at the highest clock."""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Optional, Protocol

from pfo_gpu_playground.gpu import Kind

# The work of a step is measured on the processor after a first one, in which much is loaded.
_FIRST_MEASURED, _MEASURED = 1, 2

# The heaviest instruction of all ranks takes at least this long on its GPU, and each a multiple of its time
# on the processor: it is to be the clock that counts.
_HEAVIEST_S, _LEAST_MULTIPLE, _SHORTEST_S = 0.06, 2.0, 0.004

_PATIENCE_S = 60.0


# What no clock makes faster takes its time on the processor only.
_FIXED = ("load", "p2p", "collective", "optimizer_step")


def kind_of(name: str) -> Kind:
    """What an instruction draws on a GPU like."""
    return "backward" if name.startswith("backward") or name == "forward_backward" else "forward"


class Work(Protocol):
    """How long instructions take."""

    def begin_step(self) -> None:
        """A step begins."""

    def seconds(self, name: str, chunk: int) -> Optional[float]:
        """The seconds of an instruction on its GPU; None while they are not known, or if it takes none."""

    def took(self, name: str, chunk: int, seconds: float) -> None:
        """What an instruction has taken on the processor."""


class GivenWork:
    """Work that was given by the name of the instruction."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def begin_step(self) -> None:
        """A step begins."""

    def seconds(self, name: str, chunk: int) -> Optional[float]:
        """The seconds of an instruction."""
        return None if name in _FIXED else self._seconds.get(kind_of(name))

    def took(self, name: str, chunk: int, seconds: float) -> None:
        """What an instruction has taken on the processor."""


class MeasuredWork:
    """Work in the proportions of what instructions take on the processor, over all ranks.

    Args:
        directory: Where the ranks tell each other.
        rank: The rank.
        ranks: The number of ranks.
    """

    def __init__(self, directory: Path, rank: int, ranks: int) -> None:
        self._directory, self._rank, self._ranks = directory, rank, ranks
        self._step = -1
        self._taken: dict[tuple[str, int], list[float]] = {}
        self._known: dict[tuple[str, int], float] = {}

    def begin_step(self) -> None:
        """A step begins."""
        self._step += 1
        if self._step == _FIRST_MEASURED:
            self._taken.clear()
        if self._step == _FIRST_MEASURED + _MEASURED and self._taken:
            self._settle()

    def seconds(self, name: str, chunk: int) -> Optional[float]:
        """The seconds of an instruction; None in the first steps, and if it takes none of its GPU's."""
        if not self._known or name in _FIXED:
            return None
        return self._known.get((name, chunk), _SHORTEST_S)

    def took(self, name: str, chunk: int, seconds: float) -> None:
        """What an instruction has taken on the processor."""
        if not self._known and name not in _FIXED:
            self._taken.setdefault((name, chunk), []).append(seconds)

    def _settle(self) -> None:
        typical = {key: statistics.median(taken) for key, taken in self._taken.items()}
        heaviest = self._heaviest_of_all(max(typical.values()))
        multiple = max(_LEAST_MULTIPLE, _HEAVIEST_S / max(heaviest, 1e-6))
        self._known = {key: max(_SHORTEST_S, seconds * multiple) for key, seconds in typical.items()}

    def _heaviest_of_all(self, own: float) -> float:
        mine = self._directory / f"work.{self._rank}"
        unfinished = self._directory / f"unfinished.{self._rank}"
        unfinished.write_text(json.dumps(own))
        unfinished.replace(mine)
        others = [self._directory / f"work.{rank}" for rank in range(self._ranks)]
        deadline = time.monotonic() + _PATIENCE_S
        while not all(path.exists() for path in others):
            if time.monotonic() > deadline:
                logging.getLogger("pfo_gpu").warning(
                    "only some of the %d ranks have reported %d steps; the others' work is taken for as heavy",
                    self._ranks,
                    _FIRST_MEASURED + _MEASURED,
                )
                break
            time.sleep(0.02)
        return max(float(json.loads(path.read_text())) for path in others if path.exists())


def of_environment(rank: int, ranks: int) -> Work:
    """The work that the playground has given this rank, or that is to be measured."""
    given = json.loads(os.environ.get("PFO_PLAYGROUND_WORK") or "null")
    if given is not None:
        return GivenWork(given[rank % len(given)])
    return MeasuredWork(Path(os.environ["PFO_PLAYGROUND_DIRECTORY"]), rank, ranks)
