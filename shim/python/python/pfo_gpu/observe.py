"""Runs a training, shows its time and energy, and predicts what clocks would save; sets and
installs nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

_NAMES = ("pfoctl", "pfod", "pfo-agent")

# Where a checkout has built them.
_VARIABLE = "PFO_BIN_DIR"


def directory() -> Optional[Path]:
    """The first directory with all three programs: ``PFO_BIN_DIR``, the wheel pfo-gpu-playground,
    or that of pfoctl in PATH."""
    return next((place for place in _places() if all((place / name).is_file() for name in _NAMES)), None)


def _places() -> Iterator[Path]:
    named = os.environ.get(_VARIABLE)
    if named:
        yield Path(named)
    wheel = importlib.util.find_spec("pfo_gpu_playground")
    for carried in (wheel.submodule_search_locations or ()) if wheel else ():
        yield Path(carried) / "bin"
    found = shutil.which("pfoctl")
    if found:
        yield Path(found).resolve().parent


def main(arguments: list[str]) -> int:
    """Replaces this process by ``pfoctl observe`` with these arguments; returns 1 only if that
    fails."""
    place = directory()
    if place is None:
        print(
            "python -m pfo_gpu observe: found no folder with pfoctl, pfod and pfo-agent: put those of a release into"
            f" one and name it in {_VARIABLE}, or install the wheel of pfo-gpu-playground, which carries them, beside"
            " this package. Neither requires root (docs/observe.md)",
            file=sys.stderr,
        )
        return 1
    program = str(place / "pfoctl")
    try:
        os.execv(program, [program, "observe", *arguments])
    except OSError as error:
        print(f"python -m pfo_gpu observe: {program} does not run: {error.strerror}", file=sys.stderr)
        return 1
