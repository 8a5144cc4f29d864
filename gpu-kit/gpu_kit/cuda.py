"""CUDA's driver interface through ctypes: a context, the kernels of this kit, events and their times."""

from __future__ import annotations

import ctypes
from typing import Any

from gpu_kit import kernels

_THREADS = 256
_BUFFER_BYTES = 2 << 30
_MULTIPROCESSORS = 16


class CudaError(RuntimeError):
    """A call that failed."""


class Cuda:
    """The primary context of one GPU, which frameworks of this process share."""

    def __init__(self, index: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        count = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, device)
        self.device, self.multiprocessors = device, count.value
        self._functions: dict[str, Any] = {}
        self._load(kernels.PLAIN, ["fma", "copy", "spin", "empty"])
        try:
            self._load(kernels.TENSOR, ["mma"])
        except CudaError:
            pass  # Before Ampere.
        self.buffer = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(self.buffer), ctypes.c_size_t(_BUFFER_BYTES))
        self.call("cuMemsetD32_v2", self.buffer, ctypes.c_uint(0x3C9D51A7), ctypes.c_size_t(_BUFFER_BYTES // 4))
        self.synchronize()

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function, which must succeed."""
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise CudaError(f"{name}: {result}")

    def _load(self, ptx: str, names: list[str]) -> None:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        for name in names:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self._functions[name] = function

    def has(self, name: str) -> bool:
        """Whether the driver compiled a kernel."""
        return name in self._functions

    def launch(self, name: str, n: int, blocks: int, threads: int = _THREADS) -> None:
        """Queues a kernel on the legacy default stream, which is PyTorch's, too."""
        out, number = ctypes.c_ulonglong(self.buffer.value), ctypes.c_uint(n)
        pointers = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(out), ctypes.c_void_p), ctypes.cast(ctypes.byref(number), ctypes.c_void_p)
        )
        self.call(
            "cuLaunchKernel", self._functions[name], blocks, 1, 1, threads, 1, 1, 0, None, pointers, None
        )  # fmt: skip

    def synchronize(self) -> None:
        """Waits for all work."""
        self.call("cuCtxSynchronize")

    def event(self) -> ctypes.c_void_p:
        """A new event, not recorded."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        """Records an event on the default stream."""
        self.call("cuEventRecord", event, None)

    def wait(self, event: ctypes.c_void_p) -> None:
        """Waits until the GPU has reached an event."""
        self.call("cuEventSynchronize", event)

    def elapsed_ms(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Time between two events that have been reached."""
        elapsed = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), first, last)
        return elapsed.value
