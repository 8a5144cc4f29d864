"""What a GPU is, without what tells it from others of its kind."""

from __future__ import annotations

import ctypes
from typing import Any

from gpu_kit.nvml import THROTTLE_COUNTERS, FieldValue, Nvml, name_of, now_ns, renumbered
from gpu_kit.watch import quantiles

_MOST_FIELDS = 340
# Fields of power and energy, which are read in each scope.
_SCOPED = range(185, 194)
_CLOCK_DOMAINS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_THRESHOLDS = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
_POLICIES = ["power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"]
_POLICIES_LATER = {"total_app_clocks": 10, "total_base_clocks": 11}
_SAMPLES = {
    "total_power": 0, "gpu_utilization": 1, "memory_utilization": 2, "encoder": 3, "decoder": 4,
    "processor_clock": 5, "memory_clock": 6, "module_power": 7,
}  # fmt: skip


def identity(nvml: Nvml) -> dict[str, Any]:
    """Model, driver, modes, limits and clocks."""
    clocks = _CLOCK_DOMAINS.items()
    return {
        "model": nvml.text("nvmlDeviceGetName"),
        "driver": nvml.text("nvmlSystemGetDriverVersion", of_system=True),
        "nvml": nvml.text("nvmlSystemGetNVMLVersion", of_system=True),
        "cuda": nvml.system_number("nvmlSystemGetCudaDriverVersion_v2"),
        "vbios": nvml.text("nvmlDeviceGetVbiosVersion"),
        "architecture": nvml.numbers("nvmlDeviceGetArchitecture"),
        "compute_capability": nvml.numbers("nvmlDeviceGetCudaComputeCapability", outs=2),
        "cores": nvml.numbers("nvmlDeviceGetNumGpuCores"),
        "memory_bus_bits": nvml.numbers("nvmlDeviceGetMemoryBusWidth"),
        "persistence_mode": nvml.numbers("nvmlDeviceGetPersistenceMode"),
        "compute_mode": nvml.numbers("nvmlDeviceGetComputeMode"),
        "virtualization_mode": nvml.numbers("nvmlDeviceGetVirtualizationMode"),
        "mig_mode": nvml.numbers("nvmlDeviceGetMigMode", outs=2),
        "ecc_mode": nvml.numbers("nvmlDeviceGetEccMode", outs=2),
        "power_limit_mw": {
            "set": nvml.numbers("nvmlDeviceGetPowerManagementLimit"),
            "enforced": nvml.numbers("nvmlDeviceGetEnforcedPowerLimit"),
            "default": nvml.numbers("nvmlDeviceGetPowerManagementDefaultLimit"),
            "range": nvml.numbers("nvmlDeviceGetPowerManagementLimitConstraints", outs=2),
        },
        "temperature_c": {
            name: nvml.numbers("nvmlDeviceGetTemperatureThreshold", number) for name, number in _THRESHOLDS.items()
        },
        "clock_mhz": {name: nvml.numbers("nvmlDeviceGetClockInfo", number) for name, number in clocks},
        "highest_clock_mhz": {name: nvml.numbers("nvmlDeviceGetMaxClockInfo", number) for name, number in clocks},
        "application_clock_mhz": {
            name: nvml.numbers("nvmlDeviceGetApplicationsClock", number) for name, number in clocks
        },
        "default_application_clock_mhz": {
            name: nvml.numbers("nvmlDeviceGetDefaultApplicationsClock", number) for name, number in clocks
        },
        "supported_clock_mhz": _supported_clocks(nvml),
        "supported_reasons": nvml.numbers("nvmlDeviceGetSupportedClocksThrottleReasons", kind=ctypes.c_ulonglong),
        "performance_state": nvml.numbers("nvmlDeviceGetPerformanceState"),
        "pcie": {
            "generation": nvml.numbers("nvmlDeviceGetCurrPcieLinkGeneration"),
            "width": nvml.numbers("nvmlDeviceGetCurrPcieLinkWidth"),
        },
    }


def _supported_clocks(nvml: Nvml) -> Any:
    memory = nvml.listed("nvmlDeviceGetSupportedMemoryClocks")
    if isinstance(memory, str):
        return memory
    return {str(each): nvml.listed("nvmlDeviceGetSupportedGraphicsClocks", each) for each in memory}


def fields(nvml: Nvml) -> dict[str, Any]:
    """Every field that answers, with its scope, type and value; the others by their result."""
    answered: list[Any] = []
    others: dict[str, list[Any]] = {}
    took_us = []
    for number in range(1, _MOST_FIELDS):
        for scope in range(4 if number in _SCOPED else 1):
            began = now_ns()
            value = nvml.field(number, scope)
            took = (now_ns() - began) / 1e3
            took_us.append(took)
            if value.result == 0:
                answered.append([number, scope, value.value_type, value.number(), round(took, 1), value.latency_us])
            else:
                others.setdefault(name_of(value.result), []).append([number, scope])
    return {
        "columns": ["field", "scope", "value_type", "value", "took_us", "latency_us"],
        "answered": answered,
        "others": {
            name: _ranges([number for number, scope in found if scope == 0])
            + [[number, number, f"scope {scope}"] for number, scope in found if scope]
            for name, found in others.items()
        },
        "took_us": quantiles(took_us),
    }


def _ranges(numbers: list[int]) -> list[list[Any]]:
    ranges: list[list[Any]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def throttling(nvml: Nvml, driver: str) -> dict[str, Any]:
    """Every count of throttled time, at one moment; the counters of fields in both numberings."""
    new = renumbered(driver)
    return {
        "at_ns": now_ns(),
        "numbering": "from 580.82 on" if new else "before 580.82",
        "counters": {
            name: {"now": _answer(nvml.field(numbers[new])), "other_numbering": _answer(nvml.field(numbers[not new]))}
            for name, numbers in THROTTLE_COUNTERS.items()
        },
        "violations": {
            name: nvml.violation(number)
            for name, number in [*((name, i) for i, name in enumerate(_POLICIES)), *_POLICIES_LATER.items()]
        },
        "reasons": nvml.numbers("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
    }


def _answer(value: FieldValue) -> Any:
    return value.number() if value.result == 0 else name_of(value.result)


def kept_samples(nvml: Nvml) -> dict[str, Any]:
    """What the driver keeps of each kind of samples, with times from the first on."""
    found = {}
    for name, number in _SAMPLES.items():
        samples = nvml.samples(number)
        if isinstance(samples, dict) and samples["values"]:
            first = samples["values"][0][0]
            samples["values"] = [[at - first, value] for at, value in samples["values"]]
        found[name] = samples
    return found
