"""Reads, or locks, the GPUs through NVIDIA's own Python bindings."""

import json
import sys

import pynvml

pynvml.nvmlInit()


def device(index):
    return pynvml.nvmlDeviceGetHandleByIndex(int(index))


def read(index):
    gpu = device(index)
    memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu))
    sm_mhz = pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, memory_mhz)
    return {
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "lowest_sm_mhz": min(sm_mhz),
        "highest_sm_mhz": max(sm_mhz),
        "memory_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "highest_memory_mhz": memory_mhz,
        "power_limit_mw": pynvml.nvmlDeviceGetPowerManagementLimit(gpu),
        "default_power_limit_mw": pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
        "energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
    }


command, *arguments = sys.argv[1:]
if command == "read":
    print(json.dumps([read(index) for index in range(pynvml.nvmlDeviceGetCount())]))
elif command == "lock":
    index, mhz = arguments
    pynvml.nvmlDeviceSetGpuLockedClocks(device(index), int(mhz), int(mhz))
else:
    sys.exit(f"no command {command!r}")
