"""The energy counters of GPUs, which every user may read. Nothing here changes anything of a GPU."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Optional

from pfo_gpu import _native

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_NAME_BYTES = 96

# `nvmlPciInfo_t` of `nvml.h`: the short bus id of 16 bytes, five numbers of 4, and the bus id of 32.
_PCI_BUS_ID_AT = 16 + 5 * 4
_PCI_INFO_BYTES = _PCI_BUS_ID_AT + 32

_lock = threading.Lock()
_loaded: Optional[Nvml] = None

# Threads do not outlive a fork: no thread may be in the library, or hold the lock, in the meantime.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


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
        handle = ctypes.c_void_p()
        if name.startswith("GPU-"):
            matching = [one for one in self.all() if self.uuid(one).startswith(name)]
            if len(matching) != 1:
                raise NvmlError(f"{name} is {'no GPU' if not matching else 'the beginning of several GPUs'} of this node")
            return matching[0]
        self._call("nvmlDeviceGetHandleByPciBusId_v2", name.encode(), ctypes.byref(handle))
        return handle

    def all(self) -> list[ctypes.c_void_p]:
        """The GPUs that the driver shows this process, in its own order."""
        return [self.by_index(index) for index in range(self.count())]

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """The UUID of a GPU."""
        return self._text("nvmlDeviceGetUUID", handle)

    def model(self, handle: ctypes.c_void_p) -> str:
        """The name of its model."""
        return self._text("nvmlDeviceGetName", handle)

    def pci_bus_id(self, handle: ctypes.c_void_p) -> str:
        """Its PCI bus id."""
        pci = ctypes.create_string_buffer(_PCI_INFO_BYTES)
        self._call("nvmlDeviceGetPciInfo_v3", handle, pci)
        return pci.raw[_PCI_BUS_ID_AT:].split(b"\0", 1)[0].decode()

    def energy_mj(self, handle: ctypes.c_void_p) -> int:
        """The energy that a GPU has used since its driver was loaded, in millijoules."""
        energy = ctypes.c_ulonglong()
        with _lock:
            code = self._energy(handle, ctypes.byref(energy))
        if code != _SUCCESS:
            raise NvmlError(f"the energy counter cannot be read: {self._reason(code)}")
        return energy.value

    def _text(self, name: str, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call(name, handle, text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode(errors="replace")

    def _call(self, name: str, *arguments: object) -> None:
        with _lock:
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
    loaded = _loaded
    if loaded is None:
        # Two threads may both load it: the library counts, and the later one stays.
        loaded = _loaded = Nvml()
    return loaded


def visible() -> list[ctypes.c_void_p]:
    """The GPUs of this process as CUDA counts them. Raises :class:`NvmlError` if CUDA may count
    them in another order."""
    library = nvml()
    gpus = {library.uuid(handle): handle for handle in library.all()}
    try:
        listed = [(uuid, library.pci_bus_id(handle), library.model(handle)) for uuid, handle in gpus.items()]
        return [gpus[uuid] for uuid in _native.cuda_gpus(listed)]
    except ValueError as error:
        raise NvmlError(str(error)) from None
    except KeyError as error:
        raise NvmlError(f"CUDA counts GPU {error.args[0]}, which the driver does not show this process") from None


def all_visible() -> list[ctypes.c_void_p]:
    """The GPUs of this process, in any order."""
    return nvml().all() if os.environ.get("CUDA_VISIBLE_DEVICES") is None else visible()
