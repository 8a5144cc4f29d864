"""Runs an example as one of its ranks."""

import atexit
import os
import runpy
from functools import partialmethod
from unittest.mock import patch

import pfo_gpu
from node import PATIENCE_S
from without_gpu import CudaIsTheCpu

# No trainer would wait that long for a daemon, but these machines are busy.
patient = patch.object(
    pfo_gpu.Session, "__init__", partialmethod(pfo_gpu.Session.__init__, setup_timeout_s=PATIENCE_S)
)


def run(script, rank, environment, log):
    """What an interpreter does that is started with the script."""
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    with CudaIsTheCpu(), patient:
        runpy.run_path(str(script), run_name="__main__")
    atexit._run_exitfuncs()
