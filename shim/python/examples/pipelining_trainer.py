"""A pipeline of PyTorch's own, in which every forward and backward has its GPU clock.

    PFO_JOB=JOB torchrun --nproc-per-node 4 pipelining_trainer.py
"""

import os

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pfo_gpu.integrations.pipelining

WIDTH, MICROBATCHES, STEPS = 64, 8, 5

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
rank, stages = torch.distributed.get_rank(), torch.distributed.get_world_size()

module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).to(device)
stage = PipelineStage(module, rank, stages, device)
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(module.parameters())

pfo_gpu.integrations.pipelining.follow(schedule)  # All that pfo takes.

for step in range(STEPS):
    batch = torch.randn(4 * MICROBATCHES, WIDTH, device=device)
    losses = []
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    if rank == stages - 1:
        print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}")

torch.distributed.destroy_process_group()
