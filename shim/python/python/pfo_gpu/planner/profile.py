"""Measured profiles."""

from __future__ import annotations

import csv
import io
import os
import sys
import warnings
from typing import Any, Mapping, Sequence, Union

from pfo_gpu import _native
from pfo_gpu.planner import files
from pfo_gpu.planner.optional import imported


class Profile:
    """Measured time and energy of each instruction of each stage at each clock.

    Args:
        source: A CSV file, its contents as bytes, a :class:`pandas.DataFrame` or
            :class:`polars.DataFrame`, a mapping of columns, or a sequence of mappings, one for each
            row. The columns are ``stage``, ``instruction``, ``frequency`` (MHz), ``time`` (s) and
            ``energy`` (J). Rows that differ only in other columns are repeats or ranks, as for
            ``pfoctl plan optimize``.
        combine: How rows of several ranks of a stage are combined: ``"mean"``, or ``"slowest"``,
            which takes the time of the slowest rank and the energy of all.
        noise: How rows that scatter are smoothed: ``"auto"``, ``"off"``, ``"isotonic"`` or
            ``"factor=5%"``. Predictions are replays over the smoothed profile.

    Suspicious rows give a :class:`UserWarning`.

    Raises:
        PlanError: The profile or an argument is invalid; the message names the line.
        OSError: The file cannot be read.
        TypeError: The source is none of these.
        ValueError: The columns of a mapping differ in length.
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
            contents = source
        elif isinstance(source, (str, os.PathLike)):
            path, contents = source, files.read(source)
        elif hasattr(source, "to_csv"):
            contents = source.to_csv(index=False).encode()
        elif hasattr(source, "write_csv"):
            contents = source.write_csv().encode()
        else:
            contents = _csv_of_rows(source)
        with files.named(path):
            self._native = _native.Profile(contents, combine=combine, noise=noise)
        for line in self._native.warnings:
            warnings.warn(f"{path or 'profile'}: {line}", stacklevel=_level_of_caller())

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return self._native.num_stages

    def to_csv(self) -> str:
        """Returns the smoothed profile as CSV, which ``noise="off"`` reads back unchanged.

        Exception: if model chunks were measured separately, reading computes the mean over them
        anew, which schedules without chunks use.
        """
        return self._native.to_csv()

    def to_pandas(self) -> Any:
        """Returns the rows as a :class:`pandas.DataFrame` with the columns of :meth:`to_csv`.
        Requires pandas."""
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


def _csv_of_rows(source: Any) -> bytes:
    """A mapping of columns, or a sequence of mappings, as CSV."""
    if isinstance(source, Mapping):
        columns = list(source)
        rows = [dict(zip(columns, row)) for row in zip(*(list(column) for column in source.values()))]
        if any(len(list(column)) != len(rows) for column in source.values()):
            raise ValueError("the columns of a profile must be equally long")
    elif isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        rows = [dict(row) for row in source]
        columns = list(dict.fromkeys(name for row in rows for name in row))
    else:
        raise TypeError(
            "a profile is a path, bytes, a DataFrame, a mapping of columns or a sequence of mappings, not "
            f"{type(source).__name__}"
        )
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _level_of_caller() -> int:
    """The ``stacklevel`` of the first function outside this package, which reads profiles in
    several places."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("pfo_gpu."):
        level, frame = level + 1, frame.f_back
    return level
