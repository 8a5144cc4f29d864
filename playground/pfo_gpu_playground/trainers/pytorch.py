"""A pipeline of PyTorch's own, on processors; `follow` is all that pfo takes.

It trains until it is stopped.
"""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pfo_gpu.integrations.pipelining

WIDTH, MICROBATCHES = 64, 6

torch.distributed.init_process_group("gloo")
rank, stages = torch.distributed.get_rank(), torch.distributed.get_world_size()
device = torch.device("cpu")

torch.manual_seed(rank)
module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
stage = PipelineStage(module, rank, stages, device)
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(module.parameters())

pfo_gpu.integrations.pipelining.follow(schedule)

step = 0
while True:
    batch = torch.randn(4 * MICROBATCHES, WIDTH)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    if rank == stages - 1:
        print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    step += 1
