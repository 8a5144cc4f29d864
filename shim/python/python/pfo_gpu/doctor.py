"""Reports whether a trainer with this user and environment gets its lease, and what is missing."""

from __future__ import annotations

import grp
import importlib
import logging
import os
import pwd
import stat
from typing import Optional

import pfo_gpu
from pfo_gpu import cuda
from pfo_gpu.integrations import releases
from pfo_gpu.job import agreed_name

_SOCKET = "/run/pfo/pfod.sock"


def main() -> int:
    """Opens a session of a job ``doctor``, prints what it found, and returns 0 if the session got
    its lease, else 1."""
    _say("pfo-gpu", f"{pfo_gpu.__version__} in {os.path.dirname(pfo_gpu.__file__)}")
    _say("socket", _socket(os.environ.get("PFO_SOCKET") or _SOCKET))
    _say("PyTorch", _pytorch())
    for framework in _frameworks():
        _say("release", framework)
    _say("job", agreed_name() or "not named: set PFO_JOB, or open sessions after init_process_group")
    _say("GPU", _asked_for())
    logging.getLogger("pfo_gpu").setLevel(logging.ERROR)
    try:
        with pfo_gpu.Session(job="doctor") as session:
            problem, gpu = session.problem, session.gpu
            _say("timing", session.timing)
    except ValueError as error:
        return _lease(str(error))
    return _lease(None if problem is None else str(problem), gpu)


def _say(what: str, found: str) -> None:
    print(f"{what + ':':9}{found}")


def _lease(problem: Optional[str], gpu: Optional[str] = None) -> int:
    if problem is None:
        _say("lease", f"granted, of {gpu}")
        return 0
    _say("lease", f"NONE, so training would run at default clocks: {problem}")
    return 1


def _socket(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror}; is pfod installed and running on this node?"
    if not stat.S_ISSOCK(found.st_mode):
        return f"{path} is no socket"
    if os.access(path, os.R_OK | os.W_OK):
        return f"{path}, which {_user()} may open"
    group = _group(found.st_gid)
    then = "log in again"
    if "SLURM_JOB_ID" in os.environ:
        then = "submit the job again when Slurm has looked up groups again (GroupUpdateTime)"
    return f"{path} is for group {group}; `sudo usermod -aG {group} {_user()}`, then {then}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _pytorch() -> str:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return f"not there ({error}); calls count when they are made"
    if cuda.real_pytorch(torch) is None:
        where = getattr(torch, "__file__", None) or ", ".join(torch.__path__)
        return f"not there: {where} is imported for it; rename that. Calls count when they are made"
    if not torch.cuda.is_available():
        return f"{torch.__version__} without CUDA; calls count when they are made"
    # As in a trainer: CUDA then resolves the ordinal itself.
    torch.cuda.init()
    return f"{torch.__version__} with CUDA, which sees {torch.cuda.device_count()} GPUs"


def _frameworks() -> list[str]:
    """The frameworks that are installed, and whether this release of them is tested."""
    return [
        releases.in_words(distribution)
        for distribution in releases.TESTED
        if releases.installed(distribution) is not None
    ]


def _asked_for() -> str:
    names = (
        "PFO_GPU CUDA_VISIBLE_DEVICES RANK LOCAL_RANK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK"
        " MPI_LOCALRANKID PMI_LOCAL_RANK SLURM_PROCID SLURM_LOCALID"
    ).split()
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join(given) or "no variable says which"
