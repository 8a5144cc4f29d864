"""The name that the ranks of a training run agree on."""

from __future__ import annotations

import getpass
import os
import re
import sys
import time
from typing import Any, Optional

# `torchrun` without `--rdzv-id` calls every run of every user the same.
_NO_RUN_ID = ("", "none")

_LONGEST = 128


def agreed_name(label: Optional[str] = None) -> Optional[str]:
    """The job's name, the same in all of its ranks.

    It comes from ``PFO_JOB``, else from ``SLURM_JOB_ID``, else from ``TORCHELASTIC_RUN_ID``. If none of
    them is set and ``torch.distributed`` is initialized, rank 0 creates a name and broadcasts it, so all
    ranks must call this; ``label`` becomes part of the name. Otherwise there is none.
    """
    for variable in ("PFO_JOB", "SLURM_JOB_ID"):
        if os.environ.get(variable):
            return os.environ[variable]
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if run not in _NO_RUN_ID:
        return allowed(run)
    distributed = _initialized_distributed()
    return None if distributed is None else _broadcast(distributed, label)


def allowed(name: str) -> str:
    """The name, with every character that is not allowed replaced."""
    return re.sub(r"[^A-Za-z0-9._:+,=@%/-]", "-", name)[:_LONGEST]


def _initialized_distributed() -> Any:
    # Never imported for this: a trainer that uses it has it.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _broadcast(distributed: Any, label: Optional[str]) -> str:
    names: list[Optional[str]] = [None]
    if distributed.get_rank() == 0:
        names = [_made_up(label)]
    distributed.broadcast_object_list(names, src=0)
    return str(names[0])


def _made_up(label: Optional[str]) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = str(os.getuid())
    parts = [user, time.strftime("%Y-%m-%d-%H-%M-%S"), str(os.getpid())]
    return allowed("+".join(parts + ([label] if label else [])))
