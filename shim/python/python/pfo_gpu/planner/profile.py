"""Measured profiles."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Any, Union

from pfo_gpu import _native
from pfo_gpu.planner import files
from pfo_gpu.planner.optional import imported


class Profile:
    """Measured time and energy of each instruction of each stage at each clock.

    Args:
        source: A CSV file, its contents as bytes, or a :class:`pandas.DataFrame`, with the columns
            ``stage``, ``instruction``, ``frequency`` (MHz), ``time`` (s) and ``energy`` (J). Rows that
            differ in other columns only are repeats or ranks, as for ``pfoctl plan optimize``.
        combine: How rows of several ranks of a stage are combined: ``"mean"``, or ``"slowest"``, which
            takes the time of the slowest and the energy of all.
        noise: How rows that scatter are treated: ``"auto"``, ``"off"``, ``"isotonic"`` or
            ``"factor=5%"``. Predictions are replays over the treated profile.

    What looks wrong in the profile is a :class:`UserWarning`.

    Raises:
        PlanError: The profile is not valid; the error names the line.
        OSError: The file cannot be read.
    """

    def __init__(
        self,
        source: Union[files.PathLike, bytes, Any],
        *,
        combine: str = "mean",
        noise: str = "auto",
    ) -> None:
        path = None
        if isinstance(source, bytes):
            csv = source
        elif isinstance(source, (str, os.PathLike)):
            path, csv = source, files.read(source)
        elif hasattr(source, "to_csv"):
            csv = source.to_csv(index=False).encode()
        else:
            raise TypeError(
                f"a profile is a path, bytes or a DataFrame, not {type(source).__name__}"
            )
        with files.named(path):
            self._native = _native.Profile(csv, combine=combine, noise=noise)
        for line in self._native.warnings:
            warnings.warn(f"{path or 'profile'}: {line}", stacklevel=_level_of_caller())

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return self._native.num_stages

    def to_csv(self) -> str:
        """The treated profile, which ``noise="off"`` reads back as it is."""
        return self._native.to_csv()

    def to_pandas(self) -> Any:
        """Its rows, as a :class:`pandas.DataFrame` with the columns of :meth:`to_csv`."""
        return imported("pandas", "Profile.to_pandas").read_csv(io.StringIO(self.to_csv()))

    @classmethod
    def _of_treated(cls, csv: str) -> Profile:
        """What a copy is made from: the warnings have been given."""
        profile = cls.__new__(cls)
        profile._native = _native.Profile(csv.encode(), combine="mean", noise="off")
        return profile

    def __eq__(self, other: object) -> bool:
        return self.to_csv() == other.to_csv() if isinstance(other, Profile) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_csv())

    def __reduce__(self) -> tuple[object, ...]:
        return Profile._of_treated, (self.to_csv(),)

    def __repr__(self) -> str:
        return f"<pfo_gpu.Profile of {self.num_stages} stages>"


def _level_of_caller() -> int:
    """The ``stacklevel`` of the first function outside of this package: profiles are read in several places of it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pfo_gpu."):
        level, frame = level + 1, frame.f_back
    return level
