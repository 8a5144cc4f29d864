"""What PyTorch knows of CUDA, if the trainer has imported it. Nothing here initializes CUDA."""

from __future__ import annotations

import re
import sys
from typing import Any, Callable, Optional


def current_stream(gpu: object = None) -> Optional[Callable[[], int]]:
    """What returns the handle of the stream that PyTorch works on, to be called once CUDA is initialized."""
    torch: Any = sys.modules.get("torch")
    # As the code that PyTorch's compiler writes asks for it: `current_stream()` makes an object each time.
    # A PyTorch without CUDA has none.
    handle: Optional[Callable[[int], int]] = getattr(
        getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None
    )
    if handle is None:
        return None
    ordinal = _ordinal(gpu)

    def current() -> int:
        nonlocal ordinal
        if ordinal is None:
            ordinal = int(torch.cuda.current_device())
        return handle(ordinal)

    return current


def synchronize(gpu: object = None) -> Optional[Callable[[], None]]:
    """What waits until the GPU has done all that PyTorch gave it."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    ordinal = _ordinal(gpu)

    def wait() -> None:
        # While a graph is captured nothing runs that could be waited for, and trying spoils it.
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(ordinal)

    return wait


def _ordinal(gpu: object) -> Optional[int]:
    match = re.fullmatch(r"(?:cuda:)?(\d+)", str(gpu))
    return int(match[1]) if match else None
