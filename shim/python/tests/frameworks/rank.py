"""A rank: a process that trains what it is told to, in one process group for all of its trainings."""

import importlib
import logging
import os
import traceback


class Warnings(logging.Handler):
    """What pfo has logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def serve(rank, size, directory, channel):
    """Carries out orders until nobody gives any."""
    log = os.open(directory / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size
    )
    warnings = Warnings()
    logging.getLogger("pfo_gpu").addHandler(warnings)
    while True:
        order = channel.recv()
        os.environ.update(order["environment"])
        warnings.messages = []
        try:
            module, function = order["task"].split(":")
            train = getattr(importlib.import_module(module), function)
            told = {"result": train(**order["arguments"], reach=_reaching(channel, order["holds"]))}
        except Exception:
            told = {"failure": traceback.format_exc()}
        channel.send({**told, "warnings": warnings.messages})


def _reaching(channel, holds):
    """What a training calls before each step: it goes on at once, or when it is told to."""

    def reach(step):
        if step in holds:
            channel.send({"reached": step})
            assert channel.recv() == "go on"

    return reach
