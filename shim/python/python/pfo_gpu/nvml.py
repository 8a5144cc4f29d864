"""The energy counters of GPUs, which every user may read. Nothing here changes anything of a GPU."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Optional

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_NAME_BYTES = 96

_lock = threading.Lock()
_loaded: Optional[Nvml] = None


class NvmlError(RuntimeError):
    """NVML, the driver's library, cannot be loaded or returns an error; the message names it."""


class Nvml:
    """The driver's library, initialized."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NvmlError(f"{error}; install the NVIDIA driver, or hand {_LIBRARY} to the container") from None
        self._energy = self._library.nvmlDeviceGetTotalEnergyConsumption
        self._energy.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong)]
        self._call("nvmlInit_v2")

    def count(self) -> int:
        """The number of GPUs of the node that this process may see."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def by_index(self, index: int) -> ctypes.c_void_p:
        """The GPU of an index of the driver."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def by_name(self, name: str) -> ctypes.c_void_p:
        """The GPU of a UUID, the beginning of one, or a PCI bus id. Raises :class:`NvmlError` if
        there is none."""
        handle, found = ctypes.c_void_p(), [self.by_index(index) for index in range(self.count())]
        if name.startswith("GPU-"):
            matching = [one for one in found if self.uuid(one).startswith(name)]
            if len(matching) != 1:
                raise NvmlError(f"{name} is {'no GPU' if not matching else 'the beginning of several GPUs'} of this node")
            return matching[0]
        self._call("nvmlDeviceGetHandleByPciBusId_v2", name.encode(), ctypes.byref(handle))
        return handle

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """The UUID of a GPU."""
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode()

    def energy_mj(self, handle: ctypes.c_void_p) -> int:
        """The energy that a GPU has used since its driver was loaded, in millijoules."""
        energy = ctypes.c_ulonglong()
        code = self._energy(handle, ctypes.byref(energy))
        if code != _SUCCESS:
            raise NvmlError(f"the energy counter cannot be read: {self._reason(code)}")
        return energy.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise NvmlError(f"{name}: {self._reason(code)}")

    def _reason(self, code: int) -> str:
        error_string = self._library.nvmlErrorString
        error_string.restype = ctypes.c_char_p
        return str((error_string(code) or b"").decode() or f"error {code}")


def nvml() -> Nvml:
    """The driver's library, loaded once for the process."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = Nvml()
        return _loaded


def visible() -> list[ctypes.c_void_p]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` lists, or all. Numbers count in the driver's order,
    which may not be CUDA's."""
    library = nvml()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return [library.by_index(index) for index in range(library.count())]
    found = []
    for name in names.split(","):
        name = name.strip()
        # CUDA ends its list with the first that is none.
        if name.isdigit() and int(name) < library.count():
            found.append(library.by_index(int(name)))
        elif name.startswith("GPU-"):
            found.append(library.by_name(name))
        else:
            break
    return found
