"""Tries pfo without a GPU: a simulated node is started, a pipeline trains on it, and is tuned.

Nothing outside of a temporary directory is touched, and nothing is left running at the end. The GPUs are
simulated, and so are their savings; the daemons, the tuning and the trainer are the real ones.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator, NoReturn, Optional, Sequence

from pfo_gpu.job import allowed
from pfo_gpu_playground.failure import Failure
from pfo_gpu_playground.node import LONGEST_DIRECTORY, SimulatedNode
from pfo_gpu_playground.processes import Process, until

_TRAINERS = Path(__file__).parent / "trainers"

# Work of the playground's own trainers: a forward of the first stage takes so long.
_FORWARD_S = 0.03

# So that a sweep takes minutes and not half an hour: few clocks.
_TUNING = ("--set", "sweep_stride=300", "--set", "sweep_steps=3", "--set", "rounds=4", "--steps", "3")

# PyTorch takes its time to start, four times at once on a small machine.
_START_S = 300.0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the playground; returns how it is to exit: 0, 1 with a reason, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _play(options)
    except Failure as failure:
        print(f"playground: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nplayground: interrupted; everything that it started has ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pfo_gpu playground", description=__doc__)
    parser.add_argument("--gpu", default="A40", metavar="MODEL", help="the model of the GPUs [A40]")
    parser.add_argument("--keep", action="store_true", help="let it train on afterwards, until Ctrl-C")
    parser.set_defaults(script=None, arguments=[], ranks=4, tune=True)
    programs = parser.add_subparsers(title="trainers", metavar="[run]")
    run = programs.add_parser(
        "run",
        help="tune a trainer of one's own instead of the example",
        description="Runs a trainer's script on simulated GPUs, and tunes it. It must report to pfo: by one of"
        " pfo_gpu.integrations, or by a pfo_gpu.Session. What its instructions take on the processor decides how"
        " heavy they are on the GPUs.",
    )
    run.add_argument("--ranks", type=int, default=4, metavar="N", help="the number of ranks, one for each GPU [4]")
    run.add_argument("--no-tune", dest="tune", action="store_false", help="only let it train, until Ctrl-C")
    run.add_argument("script", help="the trainer")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    return parser


def _play(options: argparse.Namespace) -> int:
    check(options)
    began = time.monotonic()
    with temporary_directory() as directory, contextlib.ExitStack() as started:
        _step(f"{options.ranks} simulated {options.gpu}s, pfod and pfo-agent")
        node = SimulatedNode(directory, f"{options.ranks}x{options.gpu}")
        started.callback(node.stop)
        node.start()
        job = job_of(options)
        trainer = start_trainer(node, job, options)
        started.callback(trainer.stop)
        await_steps(node, trainer, job, options.ranks)
        if options.tune:
            _tune(node, trainer, job, began)
        if options.keep or not options.tune:
            _let_train(node, trainer)
        trainer.stop()
        _step("Everything has ended")
        _await_release(node)
    return 0


def check(options: argparse.Namespace) -> None:
    """Refuses what cannot be played."""
    if not 1 <= options.ranks <= 64:
        raise Failure(f"--ranks {options.ranks}: a simulated node has 1 to 64 GPUs")
    if options.script is not None and not os.path.isfile(options.script):
        raise Failure(f"{options.script} is no file; give the trainer's script")


def start_trainer(node: SimulatedNode, job: str, options: argparse.Namespace) -> Process:
    """Starts the ranks of the trainer."""
    environment = {
        **node.environment(),
        "PFO_JOB": job,
        "PFO_PLAYGROUND_DIRECTORY": str(node.directory),
        "PFO_PLAYGROUND_GPUS": ",".join(gpu["uuid"] for gpu in node.gpus),
        "PFO_PLAYGROUND_TRAINER": node.program("pfo-sim-trainer"),
        # It trains on processors, also where there are GPUs.
        "CUDA_VISIBLE_DEVICES": "",
    }
    with_torch = importlib.util.find_spec("torch") is not None
    script, arguments = options.script, options.arguments
    if script is None:
        script = str(_TRAINERS / ("pytorch.py" if with_torch else "plain.py"))
        environment["PFO_PLAYGROUND_WORK"] = json.dumps(_built_in_work(node, options))
    command = [sys.executable, "-m"]
    if with_torch:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
        command += ["--module", "pfo_gpu_playground.rank"]
        how = "PyTorch's torchrun"
    else:
        command += ["pfo_gpu_playground.ranks", str(options.ranks)]
        how = "plain Python, since PyTorch is not installed"
    _step(f"A pipeline of {options.ranks} ranks: {os.path.basename(script)}, by {how}")
    return Process("the trainer", [*command, script, *arguments], node.directory / "trainer.log", environment)


def _built_in_work(node: SimulatedNode, options: argparse.Namespace) -> list[dict[str, float]]:
    """What forward and backward of each stage take at the highest clock: stages are seldom equal."""
    profile = node.directory / "built-in.csv"
    node.run(
        "pfo-sim", "profile", "--gpu", options.gpu, "--stages", str(options.ranks), "-o", str(profile)
    )
    stages: list[dict[str, float]] = [{} for _ in range(options.ranks)]
    with open(profile, newline="") as rows:
        fastest: dict[tuple[int, str], float] = {}
        for row in csv.DictReader(rows):
            key = (int(row["stage"]), row["instruction"])
            fastest[key] = min(float(row["time"]), fastest.get(key, float("inf")))
    scale = _FORWARD_S / fastest[0, "forward"]
    for (stage, name), seconds in fastest.items():
        stages[stage][name] = seconds * scale
    return stages


def await_steps(node: SimulatedNode, trainer: Process, job: str, ranks: int) -> None:
    """Waits until every rank trains."""

    def all_step() -> bool:
        node.require()
        jobs = [found for found in node.daemons.status().jobs if found.job == job]
        steps = [rank.step or 0 for found in jobs for rank in found.ranks]
        return len(steps) == ranks and min(steps) >= 4

    try:
        until("the trainer does not train", all_step, trainer, patience_s=_START_S)
    except Failure as failure:
        raise Failure(
            f"{failure}\nEvery rank has to report its steps to pfo: with pfo_gpu.integrations.pipelining.follow("
            f"schedule), or with a pfo_gpu.Session; and --ranks has to be the number of its ranks"
        ) from None
    _say(trainer.log.read_text(errors="replace").strip().splitlines()[-1:])


def _tune(node: SimulatedNode, trainer: Process, job: str, began: float) -> None:
    command = ["tune", job, *_TUNING]
    _step(f"pfoctl {' '.join(command)}")
    tuned = subprocess.run([node.program("pfoctl"), *command], env=node.environment())
    trainer.require()
    node.require()
    if tuned.returncode not in (0, 6):
        raise Failure(f"pfoctl tune has failed with exit code {tuned.returncode}")
    windows = node.daemons.status().job(job).windows
    _step(f"{time.monotonic() - began:.0f} s after the start")
    if windows and windows[-1].plan is not None:
        _say(["The job runs the plan. On a real node `pfoctl tune JOB` does the same, once pfod is installed there."])
    else:
        _say(["No plan saves energy on this job: its stages are too equal. It runs at default clocks."])


def _let_train(node: SimulatedNode, trainer: Process) -> None:
    _step("It trains on until Ctrl-C; from another terminal:")
    names = ("PFO_SOCKET", "PFO_ADMIN_SOCKET", "PFO_AGENT_SOCKET")
    environment = node.environment()
    _say([f"export {name}='{environment[name]}'" for name in names])
    _say([f"'{node.program('pfoctl')}' status", f"tail -f '{trainer.log}'"])
    while not trainer.has_ended():
        node.require()
        time.sleep(0.2)
    trainer.require()


def _await_release(node: SimulatedNode) -> None:
    until("clocks are still locked", lambda: not node.locked(), patience_s=30.0)
    _say(["No clock is locked any more."])


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory whose sockets have paths that are short enough."""
    where = tempfile.gettempdir()
    if len(where) > LONGEST_DIRECTORY - 30:
        where = "/tmp"
    directory = Path(tempfile.mkdtemp(prefix="pfo-playground-", dir=where))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def job_of(options: argparse.Namespace) -> str:
    """The name of the job."""
    if options.script is None:
        return "playground"
    return allowed(Path(options.script).stem) or "trainer"


def _interrupt(*_signal: object) -> NoReturn:
    raise KeyboardInterrupt


def _step(title: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{title}{plain}", flush=True)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"  {line}", flush=True)
