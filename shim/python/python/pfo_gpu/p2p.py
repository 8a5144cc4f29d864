"""Makes two GPUs wait for each other, so that pfod can measure their P2P-blocking power.

Each of the two runs an NCCL receive without a sender until standard input ends, and reports steps
without an instruction, so pfod sees two ranks that only wait. Requires PyTorch with CUDA and NCCL.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Optional

import pfo_gpu
from pfo_gpu.program import Failed, ended, imported_pytorch, require_pytorch

# Often enough for the daemon to see that the rank lives.
_STEP_S = 1.0

# How long a process may take to end.
_ENDING_S = 10.0


def main(arguments: Optional[list[str]] = None) -> int:
    """Lets the two GPUs wait until standard input ends; returns 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m pfo_gpu.p2p", description=__doc__)
    parser.add_argument("--gpus", required=True, metavar="UUID,UUID", help="the two GPUs, by UUID")
    parser.add_argument("--job", required=True, metavar="NAME", help="the job that pfod is to see")
    options = parser.parse_args(arguments)

    def run() -> None:
        gpus = _two_gpus(options.gpus)
        require_pytorch()
        _run(gpus, options.job)

    return ended("pfo_gpu.p2p", run)


def _two_gpus(text: str) -> list[str]:
    gpus = text.split(",")
    if len(set(gpus)) != 2 or len(gpus) != 2 or not all(gpu.startswith("GPU-") for gpu in gpus):
        raise Failed(f"--gpus {text!r} is not two UUIDs; `pfoctl gpus` lists them")
    return gpus


def _run(gpus: list[str], job: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    # Both see both GPUs, so that NCCL connects them as it would connect two stages.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    with tempfile.TemporaryDirectory(prefix="pfo-p2p-") as directory:
        processes: list[BaseProcess] = []
        ends: list[Connection] = []
        try:
            for rank in range(2):
                ours, theirs = spawn.Pipe()
                processes.append(
                    spawn.Process(target=_wait_in_vain, args=(rank, gpus, job, directory, theirs))
                )
                processes[-1].start()
                theirs.close()
                ends.append(ours)
            for gpu, end in zip(gpus, ends):
                _expect_to_wait(gpu, end)
            print("both GPUs wait until standard input ends", flush=True)
            _until_standard_input_ends(gpus, ends)
        finally:
            # A process whose pipe ends, ends.
            for end in ends:
                end.close()
            for process in processes:
                process.join(_ENDING_S)
                process.kill()


def _expect_to_wait(gpu: str, end: Connection) -> None:
    try:
        said = end.recv()
    except EOFError:
        raise Failed(f"the process on {gpu} died; see above") from None
    if said is not None:
        raise Failed(f"on {gpu}: {said}")


def _until_standard_input_ends(gpus: list[str], ends: list[Connection]) -> None:
    stdin = sys.stdin.fileno()
    while True:
        ready = wait([stdin, *ends])
        for gpu, end in zip(gpus, ends):
            if end in ready:
                _expect_to_wait(gpu, end)
        if stdin in ready and not os.read(stdin, 4096):
            return


def _wait_in_vain(rank: int, gpus: list[str], job: str, directory: str, parent: Connection) -> None:
    try:
        _receive(rank, gpus, job, directory, parent)
    except Failed as failure:
        parent.send(str(failure))
    except KeyboardInterrupt:
        pass
    # Not by way of CUDA's own ending: it would wait for the receive.
    sys.stderr.flush()
    os._exit(0)


def _receive(rank: int, gpus: list[str], job: str, directory: str, parent: Connection) -> None:
    torch = imported_pytorch(gpus=2)
    distributed: Any = importlib.import_module("torch.distributed")
    if not distributed.is_nccl_available():
        raise Failed(f"PyTorch {torch.__version__} has no NCCL; install one that has")
    torch.cuda.set_device(rank)
    # NCCL's watchdog must not end a receive that is meant to wait.
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(days=30),
    )
    message = torch.zeros(1, device="cuda")
    # Connects the two, in both directions: the receive below must not wait for that.
    for sender in range(2):
        if rank == sender:
            distributed.send(message, 1 - rank)
        else:
            distributed.recv(message, sender)
    torch.cuda.synchronize()
    # By the host's time: the GPU gets to nothing any more.
    session = pfo_gpu.Session(
        job=job, gpu=gpus[rank], rank=rank, pp_rank=rank, pp_degree=2, sync="cpu"
    )
    if session.problem is not None:
        raise Failed(f"no lease: {session.problem}")
    distributed.irecv(message, 1 - rank)
    parent.send(None)
    over = False
    while not over:
        with session.step():
            over = parent.poll(_STEP_S)
    session.close()


if __name__ == "__main__":
    sys.exit(main())
