"""The name that the ranks of a training run agree on."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import Any, Optional

from pfo_gpu import _native
from pfo_gpu.once import Once

# `torchrun` calls every run of every user the same if it is given an endpoint and no `--rdzv-id`.
_NO_RUN_ID = ("", "none")

# On one node without an endpoint it calls each run anew, whatever `--rdzv-id` says.
_FRESH = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_LONGEST = 128

_reported = Once()

# Of this process, by label.
_made_up_names: dict[Optional[str], str] = {}


def agreed_name(label: Optional[str] = None) -> Optional[str]:
    """The job's name, the same in all of its ranks; None if nothing names the job.

    It comes from ``PFO_JOB``, else from ``SLURM_JOB_ID``, else from ``TORCHELASTIC_RUN_ID``, in
    which characters that no name may have become ``-``. If ``torchrun`` has made up a random id,
    the name is ``label``, else the script's name, with the beginning of the id. If none of the
    three is set and ``torch.distributed`` is initialized, rank 0 makes up a name from ``label`` or
    the script's name, the time and its process id, and broadcasts it: all ranks must call this, and
    wait for rank 0. One warning of rank 0 says that a name is made up.
    """
    for variable in ("PFO_JOB", "SLURM_JOB_ID"):
        if os.environ.get(variable):
            return os.environ[variable]
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if _FRESH.fullmatch(run):
        name = allowed(f"{label or _script()}+{run[:8]}")
        _report_made_up(name)
        return name
    if run not in _NO_RUN_ID:
        return allowed(run)
    distributed = initialized_distributed()
    return None if distributed is None else _broadcast(distributed, label)


def allowed(name: str) -> str:
    """The name, cut to 128 characters, with ``-`` for every character that no name may have."""
    return re.sub(r"[^A-Za-z0-9._:+,=@%/-]", "-", name)[:_LONGEST]


def initialized_distributed() -> Any:
    """``torch.distributed`` if the trainer has initialized it."""
    # Never imported for this: a trainer that uses it has it.
    distributed: Any = sys.modules.get("torch.distributed")
    # A trainer's own folder `torch` may have something of this name.
    if hasattr(distributed, "is_available") and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _broadcast(distributed: Any, label: Optional[str]) -> str:
    names: list[Optional[str]] = [None]
    if distributed.get_rank() == 0:
        # A cell of a notebook that is run again is the same job.
        names = [_made_up_names.setdefault(label, _made_up(label))]
        _report_made_up(str(names[0]))
    distributed.broadcast_object_list(names, src=0)
    return str(names[0])


def _made_up(label: Optional[str]) -> str:
    name = f"{label or _script()}+{time.strftime('%Y%m%d-%H%M%S')}+{os.getpid()}"
    return allowed(name)


def _script() -> str:
    script = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    return os.path.splitext(script)[0] or "python"


def _report_made_up(name: str) -> None:
    if not _native.launched_rank() and _reported.is_first(name):
        logging.getLogger("pfo_gpu").warning(
            "the job is called %s, and otherwise when it starts again: its plans are then forgotten;"
            " set PFO_JOB to a name that stays",
            name,
        )
