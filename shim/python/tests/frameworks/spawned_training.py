"""A trainer that is started in several ways: one step of four stages, and what each rank's session says of it."""

import json
import os
import sys

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import pfo_gpu.integrations.pipelining

RANKS, WIDTH = 4, 4


def train(directory, on_gpus):
    """Follows, rank 2 first, and trains; writes the session down into a file of the rank."""
    rank = torch.distributed.get_rank()
    module, device = torch.nn.Linear(WIDTH, WIDTH), torch.device("cpu")
    stage = PipelineStage(module, rank, RANKS, device)
    schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    for first in (True, False):
        if (rank == 2) == first:
            # There is no GPU to train on, but the stage may be said to be on one.
            stage.device = torch.device("cuda", rank) if on_gpus else device
            session = pfo_gpu.integrations.pipelining.follow(schedule, setup_timeout_s=60)
            stage.device = device
        torch.distributed.barrier()
    batch = torch.ones(4, WIDTH)
    schedule.step(*[batch] if rank == 0 else [], target=batch if rank == RANKS - 1 else None)
    counters = session.counters
    told = {
        "rank": session.rank,
        "job": session.job,
        "gpu": session.gpu,
        "problem": session.problem and session.problem.code,
        "calls": counters.sent + counters.dropped,
    }
    with open(os.path.join(directory, f"{rank}.json"), "w") as file:
        json.dump(told, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def spawned(rank, directory, on_gpus):
    store = f"file://{directory}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    train(directory, on_gpus)


if __name__ == "__main__":
    _, how, directory, devices = sys.argv
    if how == "spawn":
        torch.multiprocessing.spawn(spawned, args=(directory, devices == "gpus"), nprocs=RANKS)
    else:
        torch.distributed.init_process_group("gloo")
        train(directory, devices == "gpus")
