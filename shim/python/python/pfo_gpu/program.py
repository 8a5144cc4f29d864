"""What :mod:`pfo_gpu.load` and :mod:`pfo_gpu.p2p` share: errors, exit status, and PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Callable

from pfo_gpu import cuda


class Failed(Exception):
    """The program cannot continue; the message gives reason and remedy."""


def ended(program: str, run: Callable[[], None]) -> int:
    """Runs a program; returns its exit status: 1 if it raised :class:`Failed`, which is printed,
    else 0."""
    try:
        run()
    except Failed as failure:
        print(f"{program}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def require_pytorch() -> None:
    """Raises :class:`Failed` without PyTorch. It is not imported, because it would read the
    environment now."""
    if importlib.util.find_spec("torch") is None:
        raise Failed(f"{sys.executable} has no PyTorch; install it, or use the Python that trains")


def imported_pytorch(*, gpus: int) -> Any:
    """Imports PyTorch. Raises :class:`Failed` without it, or if it does not see this number of
    GPUs."""
    require_pytorch()
    torch = cuda.real_pytorch(importlib.import_module("torch"))
    if torch is None:
        raise Failed("the module `torch` that is found first is not PyTorch; run this in another folder")
    if not torch.cuda.is_available() or torch.cuda.device_count() != gpus:
        which = "the GPU" if gpus == 1 else f"the {gpus} GPUs"
        raise Failed(f"PyTorch {torch.__version__} does not see {which}; is it built for CUDA?")
    return torch
