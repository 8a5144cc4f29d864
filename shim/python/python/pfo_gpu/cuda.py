"""Devices and streams of PyTorch or CuPy, once the trainer has imported it. Nothing here
initializes CUDA."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Callable, Optional


def pytorch() -> Any:
    """PyTorch if the trainer has imported it, else None. A file or folder ``torch`` beside the
    trainer is not PyTorch."""
    return real_pytorch(sys.modules.get("torch"))


def real_pytorch(torch: Any) -> Any:
    """A module ``torch`` if it is PyTorch, else None."""
    return torch if hasattr(torch, "cuda") else None


def driven(gpu: object = None) -> Optional[str]:
    """The GPU that a rank drives, by the caller's argument or PyTorch's current device; None if
    neither tells.

    PyTorch's current device is 0 unless the trainer has set it, so 0 does not count.
    """
    if gpu is not None and str(gpu) != "cuda":
        return str(gpu)
    torch = pytorch()
    if (gpu is None and os.environ.get("PFO_GPU")) or torch is None or not torch.cuda.is_initialized():
        return None
    current = int(torch.cuda.current_device())
    return f"cuda:{current}" if current else None


def of_framework(device: object) -> object:
    """The device of a framework's object if it is a GPU and ``PFO_GPU`` is not set, else None."""
    is_gpu = str(device).startswith("cuda") and not os.environ.get("PFO_GPU")
    return device if is_gpu else None


def current_stream(gpu: object = None) -> Callable[[Optional[int]], int]:
    """A function that returns, for a CUDA ordinal, the handle of PyTorch's current stream; of
    CuPy's if PyTorch does not use CUDA, and without either that of the legacy default stream
    (0)."""
    asked = _ordinal(gpu)
    # As in the code that PyTorch's compiler writes: `current_stream()` makes an object each time.
    handle: Optional[Callable[[int], int]] = None

    def current(ordinal: Optional[int]) -> int:
        nonlocal handle
        torch = pytorch()
        if ordinal is None:
            ordinal = asked
        if handle is None:
            cupy: Any = sys.modules.get("cupy")
            # A trainer may import PyTorch for something else than its GPU.
            if cupy is not None and (torch is None or not torch.cuda.is_initialized()):
                return int(cupy.cuda.get_current_stream(-1 if ordinal is None else ordinal).ptr)
            handle = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
            if handle is None:
                return 0
        return handle(int(torch.cuda.current_device()) if ordinal is None else ordinal)

    return current


def synchronize(gpu: object = None) -> Callable[[Optional[int]], Optional[bool]]:
    """A function that waits until the GPU of a CUDA ordinal has finished PyTorch's work, and
    returns True; False if PyTorch does not use CUDA; None, at once, while a graph is captured."""
    asked = _ordinal(gpu)

    def wait(ordinal: Optional[int]) -> Optional[bool]:
        torch = pytorch()
        if torch is None or not torch.cuda.is_initialized():
            return False
        # While a graph is captured nothing runs that could be waited for, and trying spoils it.
        if torch.cuda.is_current_stream_capturing():
            return None
        torch.cuda.synchronize(asked if ordinal is None else ordinal)
        return True

    return wait


def _ordinal(gpu: object) -> Optional[int]:
    match = re.fullmatch(r"(?:cuda:)?(\d+)", str(gpu))
    return int(match[1]) if match else None
