"""Tools that people run beside pfo read the simulated driver as they read a real one."""

import os
import pathlib
import shlex
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("nvitop")
pytest.importorskip("codecarbon")
pytest.importorskip("zeus.monitor")

NVIDIA_SMI = pathlib.Path(__file__).parents[4] / "playground" / "pfo_gpu_playground" / "nvidia_smi.py"

# Four simulated A40s that idle at 32 W and are at 60 degrees Celsius.
IDLE_W = 32

ZEUS = """
import time
from zeus.monitor import PowerMonitor, TemperatureMonitor

if __name__ == "__main__":
    power, temperature = PowerMonitor(update_period=.1), TemperatureMonitor(update_period=.1)
    time.sleep(1)
    print(sorted(power.get_all_power_timelines()), power.get_power(), temperature.get_temperature())
"""

CODECARBON = """
import time
from codecarbon import OfflineEmissionsTracker

tracker = OfflineEmissionsTracker(country_iso_code="USA", measure_power_secs=1, save_to_file=False)
tracker.start()
time.sleep(3)
tracker.stop()
data = tracker.final_emissions_data
print(data.gpu_count, data.gpu_energy * 3.6e6 / data.duration)
"""


@pytest.fixture
def run(node, tmp_path):
    # codecarbon decides by this program whether there are GPUs, and asks NVML about them.
    command = shlex.join([sys.executable, str(NVIDIA_SMI), str(node.directory / "libnvidia-ml.so.1")])
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, **node._environment, "LD_LIBRARY_PATH": str(node.directory)}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def run(*command):
        finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert finished.returncode == 0 and "Traceback" not in finished.stderr, finished.stderr
        return finished.stdout

    return run


def test_nvitop_shows_every_gpu(run):
    shown = run(sys.executable, "-m", "nvitop", "--once", "--ascii")
    assert "Driver Version: 580.95.05" in shown
    assert shown.count(" A40 ") == 4, shown


def test_the_monitors_of_zeus_read_power_and_temperature(run, tmp_path):
    (tmp_path / "zeus_monitors.py").write_text(textwrap.dedent(ZEUS))
    shown = run(sys.executable, "zeus_monitors.py")
    powers, temperatures = dict.fromkeys(range(4), float(IDLE_W)), dict.fromkeys(range(4), 60)
    assert shown == f"['device_average', 'device_instant'] {powers} {temperatures}\n"


def test_codecarbon_counts_the_watts_of_every_gpu(run):
    count, watts = run(sys.executable, "-c", textwrap.dedent(CODECARBON)).splitlines()[-1].split()
    assert int(count) == 4
    assert float(watts) == pytest.approx(4 * IDLE_W, rel=.1)
