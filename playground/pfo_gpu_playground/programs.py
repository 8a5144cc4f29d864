"""The programs of pfo that the package carries."""

from __future__ import annotations

import os
from pathlib import Path

from pfo_gpu_playground.failure import Failure

NAMES = ("pfod", "pfo-agent", "pfoctl", "pfo-sim", "pfo-sim-trainer", "libnvidia_ml.so")

# Where a checkout has built them, for tests of the package itself.
_VARIABLE = "PFO_BIN_DIR"


def directory() -> Path:
    """Where the programs are.

    Raises:
        Failure: They are not all there.
    """
    named = os.environ.get(_VARIABLE)
    where = Path(named) if named else Path(__file__).parent / "bin"
    missing = [name for name in NAMES if not (where / name).is_file()]
    if missing:
        raise Failure(
            f"{where} has no {missing[0]}: install the wheel of pfo-gpu-playground, which carries it, or set"
            f" {_VARIABLE} to the target/release of a checkout"
        )
    return where
