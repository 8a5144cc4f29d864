#!/bin/bash
# behaviour: On a machine whose driver is gone, ZeusMonitor() measures without a complaint: it monitors all GPUs that
#   it finds, finds none, and its windows end with a total energy of 0 J. Only a monitor that names its GPUs raises. So
#   a job that lost its driver looks like one that costs nothing, while get_gpus() of the same package raises.
# seen: zeus 0.16.0 (PyPI; zeus-ml before), Python 3.11, no driver:
#   ZeusMonitor()  total_energy 0, gpu_energy {}    ZeusMonitor(gpu_indices=[0])  ValueError
#   get_gpus()  ZeusGPUInitError
# needs: python3 with venv, PyPI, a machine without NVIDIA's and AMD's drivers; elsewhere it says that it skips.
#   Exits with 0 as long as Zeus behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check zeus==0.16.0
"$work/venv/bin/python" - 2> "$work/log" <<'PYTHON'
import ctypes
import sys
import time

from zeus.device import get_gpus
from zeus.monitor import ZeusMonitor

for library in ("libnvidia-ml.so.1", "libamd_smi.so"):
    try:
        ctypes.CDLL(library)
    except OSError:
        continue
    print(f"skipped: this machine has {library}")
    sys.exit(0)


def expect(what, got, wanted):
    print(f"{what:<48} {got}")
    if got != wanted:
        print(f"expected {wanted}: the behaviour has changed")
        sys.exit(1)


def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


monitor = ZeusMonitor()
monitor.begin_window("step")
time.sleep(0.2)
measured = monitor.end_window("step")
expect("ZeusMonitor(): energy of each GPU", measured.gpu_energy, {})
expect("ZeusMonitor(): total energy of a window, J", measured.total_energy, 0)
expect("ZeusMonitor(gpu_indices=[0])", error_of(lambda: ZeusMonitor(gpu_indices=[0])), "ValueError")
expect("get_gpus()", error_of(get_gpus), "ZeusGPUInitError")
PYTHON
