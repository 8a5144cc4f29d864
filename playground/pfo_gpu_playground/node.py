"""A simulated node: GPUs, and daemons of one's own for them."""

from __future__ import annotations

import grp
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from pfo_gpu import Node, NodeError
from pfo_gpu_playground import nvidia_smi, programs
from pfo_gpu_playground.failure import Failure
from pfo_gpu_playground.processes import Process, until

# A socket's path has at most 107 bytes.
LONGEST_DIRECTORY = 80


class SimulatedNode:
    """Simulated GPUs in a directory, and pfod and pfo-agent once they are started."""

    def __init__(self, directory: Path, gpus: str) -> None:
        self.directory = directory
        self._programs = programs.directory()
        self.state = directory / "gpus"
        self.daemons = Node(directory / "pfod.sock", directory / "pfo-agent.sock")
        self._processes: list[Process] = []
        owner = ["--owner-uid", str(os.getuid())] if os.getuid() else []
        self.run("pfo-sim", "create", "--warm", "--gpus", gpus, *owner)
        (directory / "libnvidia-ml.so.1").symlink_to(self._programs / "libnvidia_ml.so")
        self._add_nvidia_smi()
        self._configure()
        self.gpus: list[dict[str, Any]] = json.loads(self.run("pfo-sim", "show", "--json"))["gpus"]

    def environment(self) -> dict[str, str]:
        """What leads a program to this node."""
        return {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PFO_SIM_STATE": str(self.state),
            "PFO_DEVICES": f"{self.state}.dev",
            "PFO_SOCKET": str(self.directory / "pfod.sock"),
            "PFO_ADMIN_SOCKET": str(self.directory / "admin.sock"),
            "PFO_AGENT_SOCKET": str(self.directory / "pfo-agent-admin.sock"),
        }

    def program(self, name: str) -> str:
        """The path of a program."""
        return str(self._programs / name)

    def run(self, name: str, *arguments: str) -> str:
        """Runs a program on this node and returns what it printed."""
        try:
            ended = subprocess.run(
                [self.program(name), *arguments], env=self.environment(), capture_output=True, text=True
            )
        except OSError as error:
            raise Failure(
                f"{self.program(name)} does not run: {error.strerror}; the wheel is for Linux on x86_64, and its"
                " programs must be on a file system without noexec"
            ) from None
        if ended.returncode != 0:
            raise Failure(ended.stderr.strip() or f"{name} has failed")
        return ended.stdout

    def start(self) -> None:
        """Starts both daemons, and returns when they answer."""
        pfod = self._start("pfod", "pfod.toml")
        until("pfod does not answer", self._answers(self.daemons.status), pfod)
        agent = self._start("pfo-agent", "agent.toml")
        until("pfo-agent does not answer", self._answers(self.daemons.profiles), agent)

    def require(self) -> None:
        """Raises if a daemon has ended."""
        for process in self._processes:
            process.require()

    def stop(self) -> None:
        """Ends the daemons."""
        while self._processes:
            self._processes.pop().stop()

    def locked(self) -> list[str]:
        """The GPUs whose clocks are locked."""
        gpus = json.loads(self.run("pfo-sim", "show", "--json"))["gpus"]
        return [gpu["uuid"] for gpu in gpus if gpu["locked_sm_mhz"] is not None]

    def _start(self, name: str, configuration: str) -> Process:
        command = [self.program(name), "--config", str(self.directory / configuration)]
        process = Process(name, command, self.directory / f"{name}.log", self.environment())
        self._processes.append(process)
        return process

    def _answers(self, question: Any) -> Any:
        def attempt() -> bool:
            try:
                question()
            except NodeError:
                return False
            return True

        return attempt

    def _add_nvidia_smi(self) -> None:
        program = self.directory / "bin" / "nvidia-smi"
        program.parent.mkdir()
        command = [sys.executable, nvidia_smi.__file__, str(self.directory / "libnvidia-ml.so.1")]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)

    def _configure(self) -> None:
        group = _group(os.getegid())
        groups = f"[groups]\ntrainers = {_text(group)}\nadministrators = {_text(group)}\n"
        at = self.directory
        (at / "pfod.toml").write_text(
            f"[sockets]\ntrainers = {_text(at / 'pfod.sock')}\nadmin = {_text(at / 'admin.sock')}\n"
            f"agent = {_text(at / 'agent.sock')}\n{groups}"
            f"[driver]\nlibrary = {_text(at / 'libnvidia-ml.so.1')}\ndevices = {_text(f'{self.state}.dev')}\n"
            f"[paths]\nledger = {_text(at / 'ledger.json')}\n"
        )
        (at / "agent.toml").write_text(
            f"[sockets]\nusers = {_text(at / 'pfo-agent.sock')}\n"
            f"admin = {_text(at / 'pfo-agent-admin.sock')}\npfod = {_text(at / 'agent.sock')}\n{groups}"
            f"[paths]\nstate = {_text(at / 'agent')}\nruntime = {_text(at / 'agent-jobs')}\n"
        )


def _text(value: object) -> str:
    # A string of TOML is one of JSON.
    return json.dumps(str(value), ensure_ascii=False)


def _group(gid: int) -> str:
    # A container's user may have neither a name nor a group with one.
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
