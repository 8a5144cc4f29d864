"""Trains replicas, whole or sharded, in a loop of plain PyTorch."""

import pfo_gpu.integrations.pytorch
import torch
from model import batch, bits, digest, stage
from node import PATIENCE_S
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(kind, steps, followed, reach):
    """Trains, and returns the losses of each step, the weights, and what each step runs."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    module = stage(0)
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(module)
    else:
        model = fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = None
    if followed:
        session = pfo_gpu.integrations.pytorch.follow(model, optimizer, setup_timeout_s=PATIENCE_S)
    losses = []
    for step in range(steps):
        reach(step)
        inputs, target = (of.chunk(ranks)[rank] for of in batch(step))
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(bits(loss))
    if session is not None:
        session.close()
    order = [["forward", 0, 0], ["backward", 0, 0], ["optimizer_step", 0, 0]]
    return {"losses": losses, "weights": digest([model]), "order": order}
