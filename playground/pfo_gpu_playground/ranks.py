"""Starts the ranks of a trainer where there is no ``torchrun``: ``python -m pfo_gpu_playground.ranks N SCRIPT …``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn


def main() -> int:
    """Runs the ranks until all have ended, or one has failed."""
    count, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, _end)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count)}
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            environment = {**os.environ, **rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-u", "-m", "pfo_gpu_playground.rank", *command], env=environment
                )
            )
        return _wait(ranks)
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in ranks]
        failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            print(f"rank {failed[0]} has failed (exit code {failed[1]})", file=sys.stderr)
            return 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _end(*_signal: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
