"""A small ``nvidia-smi`` of simulated GPUs, since some tools believe in a GPU only where that program runs.

It reads through NVML, as the real one does: ``-L``, ``--query-gpu=… --format=csv``, ``-i``, and a table otherwise.
It sets nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import sys
from typing import Callable, Optional

# Numbers of NVML: what a call returns. That of a lost GPU is also the exit code of nvidia-smi.
SUCCESS, LOST = 0, 15
ABSENT, IS_LOST, TABLE_LOST = "[N/A]", "[GPU is lost]", "ERR!"
# Numbers of NVML: a clock of the SMs, the sensor on the chip.
SM, GPU_SENSOR = 1, 0


class GpuIsLost(Exception):
    """The GPU has fallen off the bus."""


class Nvml:
    """The functions of a library of NVML that return one value of a device."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._require(self._library.nvmlInit_v2())
        count = ctypes.c_uint()
        self._require(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self.count = count.value

    def driver_version(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._require(self._library.nvmlSystemGetDriverVersion(text, len(text)))
        return text.value.decode(errors="replace")

    def device(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        code = self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if not self._has(code):
            self._require(code)
        return device

    def text(self, function: str, device: ctypes.c_void_p) -> Optional[str]:
        text = ctypes.create_string_buffer(96)
        code = getattr(self._library, function)(device, text, len(text))
        return text.value.decode(errors="replace") if self._has(code) else None

    def number(self, function: str, device: ctypes.c_void_p, *arguments: int) -> Optional[int]:
        number = ctypes.c_uint()
        code = getattr(self._library, function)(device, *arguments, ctypes.byref(number))
        return number.value if self._has(code) else None

    def numbers(self, function: str, device: ctypes.c_void_p, kind: type[ctypes.Structure]) -> Optional[ctypes.Structure]:
        numbers = kind()
        return numbers if self._has(getattr(self._library, function)(device, ctypes.byref(numbers))) else None

    def _has(self, code: int) -> bool:
        if code == LOST:
            raise GpuIsLost
        return code == SUCCESS

    def _require(self, code: int) -> None:
        if code != SUCCESS:
            sys.exit(f"nvidia-smi: NVML answers with error {code}")


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("bus_id", ctypes.c_char * 32),
    ]


@dataclasses.dataclass(frozen=True)
class Gpu:
    nvml: Nvml
    index: int

    @property
    def device(self) -> ctypes.c_void_p:
        return self.nvml.device(self.index)

    def watts(self, function: str) -> Optional[str]:
        milliwatts = self.nvml.number(function, self.device)
        return None if milliwatts is None else f"{milliwatts / 1000:.2f}"

    def whole(self, function: str, *arguments: int) -> Optional[str]:
        number = self.nvml.number(function, self.device, *arguments)
        return None if number is None else str(number)

    def memory_mib(self, part: str) -> Optional[str]:
        memory = self.nvml.numbers("nvmlDeviceGetMemoryInfo", self.device, Memory)
        return None if memory is None else str(getattr(memory, part) >> 20)

    def utilization(self) -> Optional[str]:
        used = self.nvml.numbers("nvmlDeviceGetUtilizationRates", self.device, Utilization)
        return None if used is None else str(getattr(used, "gpu"))

    def bus_id(self) -> Optional[str]:
        pci = self.nvml.numbers("nvmlDeviceGetPciInfo_v3", self.device, Pci)
        return None if pci is None else str(getattr(pci, "bus_id").decode())


Reader = Callable[[Gpu], Optional[str]]

FIELDS: dict[str, tuple[str, Reader]] = {
    "index": ("", lambda gpu: str(gpu.index)),
    "name": ("", lambda gpu: gpu.nvml.text("nvmlDeviceGetName", gpu.device)),
    "uuid": ("", lambda gpu: gpu.nvml.text("nvmlDeviceGetUUID", gpu.device)),
    "pci.bus_id": ("", Gpu.bus_id),
    "driver_version": ("", lambda gpu: gpu.nvml.driver_version()),
    "count": ("", lambda gpu: str(gpu.nvml.count)),
    "temperature.gpu": ("", lambda gpu: gpu.whole("nvmlDeviceGetTemperature", GPU_SENSOR)),
    "utilization.gpu": ("%", Gpu.utilization),
    "memory.total": ("MiB", lambda gpu: gpu.memory_mib("total")),
    "memory.used": ("MiB", lambda gpu: gpu.memory_mib("used")),
    "memory.free": ("MiB", lambda gpu: gpu.memory_mib("free")),
    "power.draw": ("W", lambda gpu: gpu.watts("nvmlDeviceGetPowerUsage")),
    "power.limit": ("W", lambda gpu: gpu.watts("nvmlDeviceGetEnforcedPowerLimit")),
    "clocks.sm": ("MHz", lambda gpu: gpu.whole("nvmlDeviceGetClockInfo", SM)),
    "clocks.max.sm": ("MHz", lambda gpu: gpu.whole("nvmlDeviceGetMaxClockInfo", SM)),
}
SYNONYMS = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.current.sm": "clocks.sm"}
TABLE = ["index", "name", "temperature.gpu", "power.draw", "power.limit", "clocks.sm", "utilization.gpu"]


def main() -> None:
    library, *arguments = sys.argv[1:]
    options = parsed(arguments)
    nvml = Nvml(library)
    gpus = chosen([Gpu(nvml, index) for index in range(nvml.count)], options.id)
    if options.list_gpus:
        for gpu in gpus:
            print(f"GPU {gpu.index}: {value(gpu, 'name')} (UUID: {value(gpu, 'uuid')})")
    elif options.query_gpu is not None:
        print("\n".join(as_csv(gpus, fields(options.query_gpu), options.format.split(","))))
    else:
        print(f"NVIDIA driver {nvml.driver_version()}, simulated by pfo")
        print("\n".join(as_csv(gpus, TABLE, ["csv"])).replace(IS_LOST, TABLE_LOST))
    if any(value(gpu, "uuid") == IS_LOST for gpu in gpus):
        sys.exit(LOST)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="Show the simulated GPUs of this playground.")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-i", "--id", metavar="INDEX,…")
    parser.add_argument("--query-gpu", metavar="FIELD,…")
    parser.add_argument("--format", default="csv")
    return parser.parse_args(arguments)


def chosen(gpus: list[Gpu], names: Optional[str]) -> list[Gpu]:
    if names is None:
        return gpus
    named = {name: gpu for gpu in gpus for name in (str(gpu.index), value(gpu, "uuid"), value(gpu, "pci.bus_id"))}
    for name in names.split(","):
        if name not in named:
            sys.exit(f"nvidia-smi: no GPU {name}; -L lists them")
    return [named[name] for name in names.split(",")]


def fields(asked: str) -> list[str]:
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if SYNONYMS.get(name, name) not in FIELDS:
            sys.exit(f"nvidia-smi: no field {name}; this small one has {', '.join(FIELDS)}")
    return names


def value(gpu: Gpu, name: str) -> str:
    _, read = FIELDS[SYNONYMS.get(name, name)]
    try:
        found = read(gpu)
    except GpuIsLost:
        return IS_LOST
    return ABSENT if found is None else found


def as_csv(gpus: list[Gpu], names: list[str], format: list[str]) -> list[str]:
    def unit(name: str) -> str:
        return "" if "nounits" in format else FIELDS[SYNONYMS.get(name, name)][0]

    def cell(gpu: Gpu, name: str) -> str:
        found = value(gpu, name)
        return f"{found} {unit(name)}".rstrip() if found not in (ABSENT, IS_LOST) else found

    header = ", ".join(f"{name} [{unit(name)}]" if unit(name) else name for name in names)
    rows = [", ".join(cell(gpu, name) for name in names) for gpu in gpus]
    return rows if "noheader" in format else [header, *rows]


if __name__ == "__main__":
    main()
