"""A node in a temporary directory: simulated GPUs, and real daemons of its own."""

import grp
import json
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(os.environ.get("PFO_BIN_DIR", ROOT / "target" / "debug"))

# Far beyond what anything takes here, so that only a hang is one.
PATIENCE_S = 60


def until(what, attempt):
    """Waits until an attempt returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = attempt()
        if found:
            return found
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.01)


class Node:
    """Simulated GPUs and, while they run, pfod and pfo-agent."""

    def __init__(self, directory, gpus="4xA40"):
        self.directory = directory
        self.programs = PROGRAMS
        self.socket = directory / "pfod.sock"
        self.daemon = None
        self.agent = None
        self.devices = directory / "gpus.state.dev"
        machine = {"PFO_SIM_STATE": str(directory / "gpus.state"), "PFO_DEVICES": str(self.devices)}
        self._environment = {**os.environ, **machine}
        owner = ["--owner-uid", str(os.getuid())] if os.getuid() else []
        timing = ["--set-latency-ms", "0", "--settle-ms", "1"]
        self.run("pfo-sim", "create", "--ideal", "--gpus", gpus, *timing, *owner)
        library = directory / "libnvidia-ml.so.1"
        library.symlink_to(self.programs / "libnvidia_ml.so")
        group = grp.getgrgid(os.getegid()).gr_name
        groups = f'[groups]\ntrainers = "{group}"\nadministrators = "{group}"\n'
        (directory / "pfod.toml").write_text(
            f'[sockets]\ntrainers = "{self.socket}"\nadmin = "{directory}/admin.sock"\n'
            f'agent = "{directory}/agent.sock"\n{groups}'
            f'[driver]\nlibrary = "{library}"\ndevices = "{self.devices}"\n[paths]\nledger = "{directory}/ledger.json"\n'
            # Instructions of such small models take less than a millisecond.
            "[lease]\nchanges_per_second = 1000\nmin_mhz = 1\nmin_power_limit_w = 1\n"
        )
        (directory / "agent.toml").write_text(
            f'[sockets]\nusers = "{directory}/pfo-agent.sock"\n'
            f'admin = "{directory}/pfo-agent-admin.sock"\npfod = "{directory}/agent.sock"\n{groups}'
            f'[paths]\nstate = "{directory}/state"\nruntime = "{directory}/runtime"\n'
        )
        gpus = self.simulator()
        self.gpus = [gpu["uuid"] for gpu in gpus]
        # The order of CUDA where all GPUs are alike; the driver's is another one here.
        self.cuda_gpus = [gpu["uuid"] for gpu in sorted(gpus, key=lambda gpu: gpu["pci_bus_id"])]

    def run(self, program, *arguments, **variables):
        """Runs a program of the workspace on this node and returns what it printed."""
        command = [self.programs / program, *arguments]
        environment = {**self._environment, **variables}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def pfoctl(self, *arguments):
        """What pfoctl says, read from JSON."""
        return json.loads(self.run("pfoctl", *arguments, "--json", "--socket", str(self.socket)))

    def simulator(self):
        """The GPUs as the simulated hardware knows them, with their last calls."""
        return json.loads(self.run("pfo-sim", "show", "--json", "--calls", "4096"))["gpus"]

    def start_daemon(self):
        self.daemon = self._start("pfod", "pfod.toml")
        until("pfod answers", lambda: self._answers(self.daemon, "pfod", "gpus"))

    def start_agent(self):
        self.agent = self._start("pfo-agent", "agent.toml")
        until("pfo-agent answers", lambda: self._answers(self.agent, "pfo-agent", "p2p", "show"))

    def _start(self, program, config):
        with open(self.directory / f"{program}.log", "ab") as log:
            command = [self.programs / program, "--config", self.directory / config]
            return subprocess.Popen(command, env=self._environment, stderr=log)

    def _answers(self, daemon, program, *question):
        assert daemon.poll() is None, (self.directory / f"{program}.log").read_text()
        command = [self.programs / "pfoctl", *question, "--socket", str(self.socket)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def kill_daemon(self):
        self.daemon = self._kill(self.daemon)

    def kill_agent(self):
        self.agent = self._kill(self.agent)

    def _kill(self, daemon):
        if daemon is not None:
            daemon.kill()
            daemon.wait()

    def ranks(self, job="job"):
        """The ranks of a job as the daemon knows them; none if there is no such job."""
        jobs = self.pfoctl("status")["jobs"]
        return next((found["ranks"] for found in jobs if found["job"] == job), [])

    def clocks_set(self, gpu):
        """Every clock that was locked on a GPU, in MHz and in order."""
        calls = self.simulator()[gpu].get("calls", [])
        return [call["max"] for call in calls if call["result"] == 0]

    def until_clock(self, gpu, mhz):
        """Waits until this is the clock that was locked last."""
        until(f"GPU {gpu} is locked at {mhz} MHz", lambda: self.clocks_set(gpu)[-1:] == [mhz])

    def swap_in(self, job, stages, clocks_mhz):
        """Has every stage of a job run forward and backward in turns at these clocks from now on."""
        turns = [
            {"instruction": ("forward", "backward")[i % 2], "microbatch": i // 2, "frequency_mhz": mhz}
            for i, mhz in enumerate(clocks_mhz)
        ]
        plan = {
            "format": "pfo-plan/1",
            "gpu": "A40",
            "schedule": "1f1b",
            "num_stages": stages,
            "num_microbatches": len(clocks_mhz) // 2,
            "p2p_blocking_power_w": 70,
            "stages": [{"stage": stage, "instructions": turns} for stage in range(stages)],
        }
        file = self.directory / "plan.json"
        file.write_text(json.dumps(plan))
        self.run("pfoctl", "plan", "swap", job, str(file), "--this-node-only", "--socket", str(self.socket))
