"""Runs an example as one of its ranks."""

import atexit
import os
import runpy

from without_gpu import CudaIsTheCpu


def run(script, rank, environment, log):
    """What an interpreter does that is started with the script."""
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    with CudaIsTheCpu():
        runpy.run_path(str(script), run_name="__main__")
    atexit._run_exitfuncs()
