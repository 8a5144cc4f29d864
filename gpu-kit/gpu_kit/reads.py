"""How long each read of NVML takes."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

from gpu_kit.nvml import (
    AVERAGE, ENERGY, INSTANT, MEMORY_CLOCK, MEMORY_TEMPERATURE, POWER, REASONS, SM_CLOCK, STATE, SW_POWER_CAP,
    TEMPERATURE, UTILIZATION, Nvml, Reading, now_ns,
)  # fmt: skip
from gpu_kit.watch import quantiles

_ENOUGH = 200

READINGS = [
    ENERGY, POWER, AVERAGE, INSTANT, SM_CLOCK, MEMORY_CLOCK, TEMPERATURE, MEMORY_TEMPERATURE, REASONS, STATE,
    UTILIZATION, SW_POWER_CAP, Reading("energy_field_mj", field=83), Reading("fan_percent", "nvmlDeviceGetFanSpeed"),
    Reading("power_limit_mw", "nvmlDeviceGetPowerManagementLimit"),
    Reading("enforced_power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit"),
    Reading("persistence_mode", "nvmlDeviceGetPersistenceMode"),
    Reading("pcie_sent_kb_s", "nvmlDeviceGetPcieThroughput", 0),
]  # fmt: skip


def _others(nvml: Nvml) -> dict[str, Callable[[], Any]]:
    def unless_text(value: Any) -> Any:
        return None if isinstance(value, str) else value

    return {
        "processes": lambda: unless_text(nvml.processes("nvmlDeviceGetComputeRunningProcesses_v3")),
        "supported_clocks": lambda: unless_text(nvml.listed("nvmlDeviceGetSupportedMemoryClocks")),
        "samples_of_power": lambda: unless_text(nvml.samples(0)),
        "violation_of_power": lambda: unless_text(nvml.violation(0)),
        "mig_mode": lambda: unless_text(nvml.numbers("nvmlDeviceGetMigMode", outs=2)),
        "eight_fields": lambda: nvml.fields([(f, 0) for f in (83, 185, 186, 74, 76, 82, 190, 191)]),
    }


def read_times(nvml: Nvml, share: float, until: Callable[[], bool]) -> dict[str, Any]:
    """The time of each read, one after the other with a pause as long as the read, at most half a second each."""
    calls = {each.name: nvml.reader(each) for each in READINGS} | _others(nvml)
    found: dict[str, Any] = {}
    for name, call in calls.items():
        if until():
            break
        if call() is None:
            found[name] = None
            continue
        took_us: list[float] = []
        limit = time.monotonic() + 0.5 * share
        while len(took_us) < _ENOUGH and time.monotonic() < limit:
            began = now_ns()
            call()
            took = now_ns() - began
            took_us.append(took / 1e3)
            time.sleep(min(took / 1e9, 0.001))
        found[name] = quantiles(took_us)
    return found


def spaced(nvml: Nvml, reading: Reading, pause_s: float, count: int) -> list[float]:
    """The times of reads with pauses, in us, in their order."""
    read, took_us = nvml.reader(reading), []
    for _ in range(count):
        time.sleep(pause_s)
        began = now_ns()
        read()
        took_us.append(round((now_ns() - began) / 1e3, 1))
    return took_us


def beside(nvml: Nvml, slow: Reading, others: list[Reading], seconds: float) -> dict[str, Any]:
    """The times of reads while another thread reads something else without a pause."""
    is_over = threading.Event()

    def keep_reading() -> None:
        read = nvml.reader(slow)
        while not is_over.is_set():
            read()

    thread = threading.Thread(target=keep_reading, daemon=True)
    thread.start()
    readers = {each.name: nvml.reader(each) for each in others}
    took_us: dict[str, list[float]] = {name: [] for name in readers}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, read in readers.items():
            began = now_ns()
            read()
            took_us[name].append((now_ns() - began) / 1e3)
        time.sleep(0.002)
    is_over.set()
    thread.join()
    return {name: quantiles(took) for name, took in took_us.items()}
