"""A window beside that of Zeus' own monitor, over the same time."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("zeus.monitor")

# Without CUDA there is nothing that Zeus could wait for.
PROGRAM = """
import json, statistics, time
from zeus.monitor import ZeusMonitor
import pfo_gpu

theirs, ours = ZeusMonitor(gpu_indices=[0, 1]), pfo_gpu.Monitor(gpu_indices=[0, 1])
block = pfo_gpu.window("block", gpus=[0, 1])
theirs.begin_window("block", sync_execution=False)
ours.begin_window("block", sync_execution=False)
block.begin()
time.sleep(5)
block.end()
our = ours.end_window("block", sync_execution=False)
their = theirs.end_window("block", sync_execution=False)

took = {theirs: [], ours: []}
for _ in range(300):
    for monitor, of_each in took.items():
        began = time.perf_counter()
        monitor.begin_window("w", sync_execution=False)
        monitor.end_window("w", sync_execution=False)
        of_each.append(1e6 * (time.perf_counter() - began))
costs = [statistics.median(of_each) for of_each in took.values()]
print(json.dumps([their.gpu_energy, our.gpu_energy, block.energy_j, *costs]))
"""


def test_a_window_has_the_joules_of_zeus_and_is_cheaper(node):
    environment = {**os.environ, **node._environment, "LD_LIBRARY_PATH": str(node.directory)}
    environment.pop("PFO_GPU", None)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    theirs, ours, block_j, their_us, our_us = json.loads(finished.stdout.splitlines()[-1])
    for gpu, energy in theirs.items():
        assert ours[gpu] == pytest.approx(energy, rel=.01)
    assert block_j == pytest.approx(sum(theirs.values()), rel=.01)
    assert our_us < their_us
    print(f"a window: {our_us:.1f} us, that of Zeus {their_us:.1f} us")
