#!/bin/bash
# behaviour: A process that hides GPUs from CUDA is billed for others. Four libraries of energy read
#   CUDA_VISIBLE_DEVICES in four ways, and none as CUDA does. A job without a GPU has an empty one, or -1: codecarbon
#   takes the empty one for "not set", and carbontracker for "not understood", so that such a job is billed for every
#   GPU of the node, those of its neighbours included; at -1 carbontracker and Zeus fail. A GPU named by its UUID, in
#   full or by the beginning that CUDA takes, costs 0 J in codecarbon, which strips the letters M, I and G from the left
#   of the name in place of "MIG-", and looks for PU-…; in carbontracker it is all GPUs, in Zeus a ValueError. Where CUDA
#   ends the list, at its first entry that is no GPU, two of them fail. eco2ai bills all GPUs always.
# seen: zeus 0.16.0, codecarbon 3.3.2, carbontracker 2.4.7, eco2ai 0.3.12. Four GPUs of 100, 200, 400 and 800 W, by a
#   stand-in for the module of NVML; watts that each library bills, and those of the GPUs that CUDA shows:
#   value    CUDA   zeus         codecarbon   carbontracker   eco2ai
#   2        400    400          400          400             1500
#   2,0      500    500          500          500             1500
#   (empty)  0      0            1500         1500            1500
#   -1       0      an error     0            an error        1500
#   2,-1     400    an error     400          an error        1500
#   UUID     400    an error     0            1500            1500
# needs: python3 with venv, PyPI. Exits with 0 as long as they do so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check zeus==0.16.0 codecarbon==3.3.2 carbontracker==2.4.7 \
    eco2ai==0.3.12 nvidia-ml-py==13.615.71
# codecarbon looks for a GPU by whether this program runs.
mkdir programs
printf '#!/bin/sh\n' > programs/nvidia-smi
chmod +x programs/nvidia-smi
cat > billed.py <<'PYTHON'
import sys
import time
import types

WATTS = [100, 200, 400, 800]
UUIDS = [f"GPU-{first}0000000-0000-4000-8000-000000000000" for first in (8, 2, 5, 7)]


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


def by_index(index):
    if not 0 <= index < len(WATTS):
        raise NVMLError(2)
    return index


class Bindings(types.ModuleType):
    """What is asked beside this, these GPUs do not support."""

    def __getattr__(self, name):
        if name.startswith("NVMLError_"):
            return type(name, (NVMLError,), {})
        if name.startswith("NVML_"):
            return 0
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def not_supported(*arguments):
            raise NVMLError(3)

        return not_supported


pynvml = Bindings("pynvml")
pynvml.NVMLError = NVMLError
pynvml._nvmlGetFunctionPointer = None
pynvml.nvmlInit = pynvml.nvmlShutdown = lambda: None
pynvml.nvmlDeviceGetCount = lambda: len(WATTS)
pynvml.nvmlDeviceGetHandleByIndex = by_index
pynvml.nvmlDeviceGetUUID = UUIDS.__getitem__
pynvml.nvmlDeviceGetName = lambda gpu: "NVIDIA H100"
pynvml.nvmlDeviceGetArchitecture = lambda gpu: 9
pynvml.nvmlDeviceGetPowerUsage = lambda gpu: WATTS[gpu] * 1000
pynvml.nvmlDeviceGetTotalEnergyConsumption = lambda gpu: int(WATTS[gpu] * time.monotonic() * 1000)
pynvml.nvmlDeviceGetPowerManagementLimit = pynvml.nvmlDeviceGetEnforcedPowerLimit = lambda gpu: 700_000
pynvml.nvmlDeviceGetPowerManagementLimitConstraints = lambda gpu: [100_000, 700_000]
pynvml.nvmlDeviceGetTemperature = lambda gpu, sensor: 40
pynvml.nvmlDeviceGetComputeMode = lambda gpu: 0
pynvml.nvmlDeviceGetMemoryInfo = lambda gpu: types.SimpleNamespace(total=80 << 30, used=0, free=80 << 30)
pynvml.nvmlDeviceGetUtilizationRates = lambda gpu: types.SimpleNamespace(gpu=50, memory=10)
pynvml.nvmlDeviceGetComputeRunningProcesses = pynvml.nvmlDeviceGetGraphicsRunningProcesses = lambda gpu: []
sys.modules["pynvml"] = pynvml


def zeus():
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(approx_instant_energy=False)
    monitor.begin_window("w", sync_execution=False)
    time.sleep(2)
    measured = monitor.end_window("w", sync_execution=False)
    return measured.total_energy / measured.time


def codecarbon():
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(
        country_iso_code="DEU", save_to_file=False, log_level="critical", allow_multiple_runs=True,
        measure_power_secs=600)
    tracker.start()
    began = time.monotonic()
    time.sleep(8)
    tracker.stop()
    return tracker.final_emissions_data.gpu_energy * 3.6e6 / (time.monotonic() - began)


def carbontracker():
    from carbontracker.components.component import Component

    gpus = Component("gpu", pids=[], devices_by_pid=False, logger=None)
    gpus.init()
    gpus.collect_power_usage(epoch=1)
    return sum(gpus.power_usages[0])


def eco2ai():
    from eco2ai.tools.tools_gpu import GPU

    return sum(GPU().gpu_power()) / 1000


try:
    # Starting and stopping takes codecarbon a moment.
    print("billed", round(globals()[sys.argv[1]]() * 1.02, -2))
except Exception as error:
    print("billed an error", type(error).__name__)
PYTHON
uuid=GPU-50000000-0000-4000-8000-000000000000
failed=0
expect() {
    local value=$1 want got
    shift
    for library in zeus codecarbon carbontracker eco2ai; do
        want=$1
        shift
        got=$(CUDA_VISIBLE_DEVICES=$value PATH=$work/programs:$PATH venv/bin/python -W ignore billed.py $library \
            2> errors | sed -n 's/^billed //p')
        echo "CUDA_VISIBLE_DEVICES='$value'  $library: ${got:-nothing}"
        case $got in
            "$want".0 | "$want"\ *) ;;
            *) echo "expected $want: the behaviour has changed" && failed=1 ;;
        esac
    done
}
expect 2 400 400 400 1500
expect 2,0 500 500 500 1500
expect "" 0 1500 1500 1500
expect -1 "an error" 0 "an error" 1500
expect 2,-1 "an error" 400 "an error" 1500
expect $uuid "an error" 0 1500 1500
expect ${uuid%%0*} "an error" 0 1500 1500
exit $failed
