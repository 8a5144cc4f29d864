"""Trains with a schedule on torchtitan's meshes. Its trainer requires a GPU, and this stands for it."""

import inspect
from types import SimpleNamespace
from unittest.mock import patch

import orders
import torch
from model import MICROBATCHES, batch, bits, digest, stage
from node import PATIENCE_S
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torchtitan.distributed import ParallelDims

import pfo_gpu.integrations.torchtitan

STAGES = 2


def train(steps, followed, reach):
    """Two replicas of a pipeline of two stages."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    degrees = {"dp_replicate": 1, "dp_shard": ranks // STAGES, "pp": STAGES, "world_size": ranks}
    known = inspect.signature(ParallelDims).parameters
    dims = ParallelDims(**{**{name: 1 for name in ("cp", "tp", "ep", "etp") if name in known}, **degrees})
    # Without a GPU, torchtitan takes CUDA's meshes all the same.
    with patch("torchtitan.distributed.parallel_dims.device_type", "cpu"):
        dims.build_mesh()
    pipeline = dims.get_mesh("pp")
    own = pipeline.get_local_rank()
    module = stage(own)
    group = pipeline.get_group()
    schedule = Schedule1F1B(
        PipelineStage(module, own, STAGES, torch.device("cpu"), group=group),
        MICROBATCHES,
        loss_fn=torch.nn.functional.mse_loss,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    session, replica = None, None
    if followed:
        trainer = SimpleNamespace(pp_schedule=schedule, parallel_dims=dims, step=0)
        session = pfo_gpu.integrations.torchtitan.follow(trainer, setup_timeout_s=PATIENCE_S)
        replica = pfo_gpu.integrations.torchtitan._replica(dims)
    losses = []
    for step in range(steps):
        reach(step)
        inputs, target = batch(step)
        of_step = []
        last = own == STAGES - 1
        schedule.step(*[inputs] if own == 0 else [], target=target if last else None, losses=of_step if last else None)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([bits(loss) for loss in of_step])
    if session is not None:
        session.close()
    order = orders.one_forward_one_backward(own, STAGES, MICROBATCHES)
    return {"losses": losses, "weights": digest([module]), "order": order, "replica": replica, "rank": rank}
