"""Processes that end with the playground, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence

from pfo_gpu_playground.failure import Failure

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Has the kernel send this process a signal when the process that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


class Process:
    """A process in a session of its own, which Ctrl-C on the terminal does not reach."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Optional[Mapping[str, str]] = None
    ) -> None:
        self.name = name
        self.log = log
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def require(self) -> None:
        """Raises what it has said at last if it has ended."""
        code = self._process.poll()
        if code is not None:
            said = self.log.read_text(errors="replace").strip().splitlines()[-20:]
            last = "\n".join(f"    {line}" for line in said) or "    nothing"
            raise Failure(f"{self.name} has ended ({_end(code)}); it said at last:\n{last}")

    def stop(self) -> None:
        """Ends it and what is left of its session."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def until(what: str, attempt: Callable[[], object], *required: Process, patience_s: float = 60.0) -> None:
    """Waits until an attempt succeeds, while these processes have to run."""
    deadline = time.monotonic() + patience_s
    while not attempt():
        for process in required:
            process.require()
        if time.monotonic() > deadline:
            said = "".join(f"\n{process.name} writes to {process.log}" for process in required)
            raise Failure(f"{what}: not within {patience_s:.0f} s{said}")
        time.sleep(0.05)


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
