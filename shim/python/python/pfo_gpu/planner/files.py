"""Reads and writes files, and names them in errors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional, Union

from pfo_gpu._native import PlanError

PathLike = Union[str, "os.PathLike[str]"]


def read(path: PathLike) -> bytes:
    """The contents of a file."""
    return Path(path).read_bytes()


@contextmanager
def named(path: Optional[PathLike]) -> Iterator[None]:
    """Puts the name of the file, if there is one, before the message of a :class:`PlanError`."""
    try:
        yield
    except PlanError as error:
        if path is None:
            raise
        raise PlanError(f"{os.fspath(path)}: {error}") from None


def write(path: PathLike, contents: bytes) -> None:
    """Replaces a file at once: readers see the old or the new contents."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(contents)
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(contents)
        unfinished.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)
