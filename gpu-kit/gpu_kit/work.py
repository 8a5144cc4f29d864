"""What a GPU can be kept busy with, and how much of it takes a given time."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from gpu_kit.cuda import Cuda

_MATRIX = 8192
# A collective of a few channels, while it waits for its peer.
_CHANNELS, _CHANNEL_THREADS = 24, 512


class Kind:
    """A load: `launch(amount)` queues work that takes `amount` times `unit_ms`."""

    def __init__(self, launch: Callable[[int], None], unit_ms: Optional[float]) -> None:
        self.launch, self.unit_ms = launch, unit_ms

    def for_ms(self, milliseconds: float) -> int:
        """The amount that takes about this long."""
        return max(1, round(milliseconds / (self.unit_ms or 1.0)))


class Gpu:
    """A GPU with a context, and its kinds of load."""

    def __init__(self, index: int, torch: Any) -> None:
        self.cuda = Cuda(index)
        blocks = self.cuda.multiprocessors * 8
        threads = blocks * 256
        # Half the buffer in units of 16 bytes for each thread, copied `amount` times.
        whole = (1 << 30) // (16 * threads)
        self.kinds: dict[str, Kind] = {}
        self._add("fma", lambda n: self.cuda.launch("fma", n, blocks))
        self._add("copy", lambda n: self._copy(n, whole, blocks))
        microseconds = 100
        self.kinds["spin"] = Kind(
            lambda n: self.cuda.launch("spin", n * microseconds, _CHANNELS, _CHANNEL_THREADS), microseconds / 1e3
        )
        self.kinds["spin_all"] = Kind(
            lambda n: self.cuda.launch("spin", n * microseconds, self.cuda.multiprocessors, 512), microseconds / 1e3
        )
        if self.cuda.has("mma"):
            self._add("mma", lambda n: self.cuda.launch("mma", n, blocks))
        if torch is not None and torch.cuda.is_available():
            self._add("matmul", _products(torch, index))

    def _copy(self, times: int, whole: int, blocks: int) -> None:
        for _ in range(times):
            self.cuda.launch("copy", whole, blocks)

    def _add(self, name: str, launch: Callable[[int], Any]) -> None:
        launch(1)
        self.cuda.synchronize()
        amount, took_ms = 1, 0.0
        while took_ms < 20 and amount < 1 << 26:
            amount *= 4 if took_ms < 5 else 2
            began = time.monotonic()
            launch(amount)
            self.cuda.synchronize()
            took_ms = (time.monotonic() - began) * 1e3
        self.kinds[name] = Kind(launch, took_ms / amount)

    @property
    def densest(self) -> str:
        """The load that draws the most."""
        return next(name for name in ("matmul", "mma", "fma") if name in self.kinds)


def _products(torch: Any, index: int) -> Callable[[int], None]:
    device = f"cuda:{index}"
    factors = [torch.randn(_MATRIX, _MATRIX, device=device, dtype=torch.bfloat16) for _ in range(2)]
    product = torch.empty_like(factors[0])

    def launch(times: int) -> None:
        for _ in range(times):
            torch.mm(*factors, out=product)

    return launch
