"""Run by nvidia_ml_py.rs on a machine of 2 A100 and 1 V100."""

import os
import re
import time

import pynvml as nvml


def refused(code, function, *arguments):
    try:
        function(*arguments)
    except nvml.NVMLError as error:
        assert error.value == code, f"{function.__name__}{arguments}: {error}"
        return
    raise AssertionError(f"{function.__name__}{arguments} was not refused")


def eventually(value, function, *arguments):
    deadline = time.monotonic() + 10
    while function(*arguments) != value:
        assert time.monotonic() < deadline, f"{function.__name__} is {function(*arguments)}"
        time.sleep(0.002)


refused(nvml.NVML_ERROR_UNINITIALIZED, nvml.nvmlDeviceGetCount)
nvml.nvmlInit()
assert nvml.nvmlDeviceGetCount() == 3
a100, _, v100 = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(3))
refused(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetHandleByIndex, 3)
refused(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetHandleByUUID, "GPU-none")

assert nvml.nvmlDeviceGetName(a100) == "NVIDIA A100-SXM4-40GB"
uuid = nvml.nvmlDeviceGetUUID(v100)
assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == 2
assert nvml.nvmlDeviceGetPciInfo(a100).busId == "00000000:17:00.0"
assert nvml.nvmlDeviceGetCudaComputeCapability(v100) == (7, 0)
assert nvml.nvmlDeviceGetSupportedMemoryClocks(a100) == [1215]
clocks = nvml.nvmlDeviceGetSupportedGraphicsClocks(v100, 877)
assert (clocks[0], clocks[-3:], len(clocks)) == (1530, [150, 142, 135], 187)
assert nvml.nvmlDeviceGetMigMode(a100) == [0, 0]
refused(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetMigMode, v100)
assert nvml.nvmlDeviceGetComputeRunningProcesses(a100) == []
assert nvml.nvmlDeviceGetMemoryInfo(a100, version=nvml.nvmlMemory_v2).total == 40 << 30

assert nvml.nvmlDeviceGetPowerUsage(a100) == 54_000
energy = nvml.nvmlDeviceGetTotalEnergyConsumption(a100)
time.sleep(0.1)
later = nvml.nvmlDeviceGetTotalEnergyConsumption(a100)
assert later - energy >= 54 * 80, f"{later - energy} mJ in 100 ms at 54 W"
field = nvml.nvmlDeviceGetFieldValues(a100, [nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])[0]
assert field.nvmlReturn == nvml.NVML_SUCCESS and field.value.ullVal >= later


def field_of(device, field, scope=0):
    value = nvml.nvmlDeviceGetFieldValues(device, [(field, scope)])[0]
    return value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else value.nvmlReturn


# The numbers are those of the header that came with this driver.
assert nvml.nvmlSystemGetDriverVersion() == "580.95.05"
assert nvml.nvmlSystemGetCudaDriverVersion_v2() == 13_000
assert nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN == 269
for field in (269, 270, 271):
    assert field_of(a100, field) == 0, field
for field in (251, 252, 253):
    assert field_of(a100, field) == nvml.NVML_ERROR_NOT_SUPPORTED, field
# What an A100 reads is no average, and it is on no module.
assert field_of(a100, nvml.NVML_FI_DEV_POWER_AVERAGE) == nvml.NVML_ERROR_NOT_SUPPORTED
assert field_of(v100, nvml.NVML_FI_DEV_POWER_AVERAGE) == nvml.NVML_ERROR_NOT_SUPPORTED
assert field_of(a100, nvml.NVML_FI_DEV_POWER_INSTANT) == 54_000
module = nvml.NVML_POWER_SCOPE_MODULE
assert field_of(a100, nvml.NVML_FI_DEV_POWER_INSTANT, module) == nvml.NVML_ERROR_NOT_SUPPORTED
assert field_of(a100, nvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT) == 400_000
assert field_of(a100, nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT) == 400_000

# What such a board does not have is there and not supported; it is never missing.
refused(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetFanSpeed, a100)
missing = [
    name
    for name in re.findall(r'FunctionPointer\("(nvml\w+)"\)', open(nvml.__file__).read())
    if not name.endswith("_v1") and not hasattr(nvml.nvmlLib, name)
]
assert missing == [], missing
reading = nvml.nvmlDeviceGetTemperatureV(a100, nvml.NVML_TEMPERATURE_GPU)
assert reading == nvml.nvmlDeviceGetTemperature(a100, nvml.NVML_TEMPERATURE_GPU)

if os.geteuid() == 0:
    nvml.nvmlDeviceSetGpuLockedClocks(a100, 900, 900)
    eventually(900, nvml.nvmlDeviceGetClockInfo, a100, nvml.NVML_CLOCK_SM)
    nvml.nvmlDeviceResetGpuLockedClocks(a100)
    eventually(210, nvml.nvmlDeviceGetClockInfo, a100, nvml.NVML_CLOCK_SM)
    refused(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceSetGpuLockedClocks, a100, 900, 800)
    refused(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceSetMemoryLockedClocks, v100, 877, 877)

    # A forked child goes on with the library as its parent initialised it.
    child = os.fork()
    if child == 0:
        nvml.nvmlDeviceSetGpuLockedClocks(a100, 1200, 1200)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    eventually(1200, nvml.nvmlDeviceGetClockInfo, a100, nvml.NVML_CLOCK_SM)
    os.seteuid(65534)
refused(nvml.NVML_ERROR_NO_PERMISSION, nvml.nvmlDeviceSetGpuLockedClocks, a100, 900, 900)
refused(nvml.NVML_ERROR_NO_PERMISSION, nvml.nvmlDeviceResetGpuLockedClocks, a100)

nvml.nvmlShutdown()
refused(nvml.NVML_ERROR_UNINITIALIZED, nvml.nvmlDeviceGetCount)
