"""A pipeline of DeepSpeed's, in which every forward and backward has its GPU clock.

    PFO_JOB=JOB deepspeed --num_gpus 4 deepspeed_trainer.py

Without GPUs, DS_ACCELERATOR=cpu as well; DeepSpeed then compiles a part of itself, which takes minutes.
"""

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

import pfo_gpu.integrations.deepspeed

WIDTH, MICROBATCHES, STEPS = 64, 8, 5

deepspeed.init_distributed()
stages = torch.distributed.get_world_size()
layers = [layer for _ in range(stages) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
engine, *_ = deepspeed.initialize(
    model=PipelineModule(layers, num_stages=stages, loss_fn=torch.nn.functional.mse_loss),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "steps_per_print": 1,
    },
)

pfo_gpu.integrations.deepspeed.follow(engine)  # All that pfo takes.

for _ in range(STEPS):
    batch = torch.randn(MICROBATCHES, 4, WIDTH)
    engine.train_batch(iter(list(zip(batch, batch))))

torch.distributed.destroy_process_group()
