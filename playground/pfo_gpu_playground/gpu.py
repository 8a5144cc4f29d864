"""The simulated GPU of a rank."""

from __future__ import annotations

import subprocess
from typing import Literal, Optional

Kind = Literal["forward", "backward"]


class SimulatedGpu:
    """A GPU that computes what it is given, as long as its clock makes it take.

    Args:
        trainer: The program ``pfo-sim-trainer``.
        state: The state file of the machine.
        index: The GPU's index.
    """

    def __init__(self, trainer: str, state: str, index: int) -> None:
        self._process: Optional[subprocess.Popen[str]] = subprocess.Popen(
            [trainer, "compute", "--state", state, "--gpu", str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._is_busy = False

    def begin(self, kind: Kind, seconds: float) -> None:
        """Starts work of a kind that takes this time at the highest clock."""
        self._is_busy = self._says(f"begin {kind} {seconds:.9f}")

    def end(self) -> None:
        """Waits until the work is done."""
        if self._is_busy:
            self._is_busy = False
            self._asks("end")

    def wait(self) -> None:
        """From now on the GPU waits for its neighbour."""
        self._asks("wait")

    def _asks(self, order: str) -> None:
        if self._says(order) and self._process is not None and self._process.stdout is not None:
            if not self._process.stdout.readline():
                self._process = None

    def _says(self, order: str) -> bool:
        # The trainer goes on without its GPU.
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(order + "\n")
        except (OSError, ValueError):
            self._process = None
            return False
        return True
