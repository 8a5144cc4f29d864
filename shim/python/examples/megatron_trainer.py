"""A pipeline of Megatron-Core's, in which every forward and backward has its GPU clock.

    PFO_JOB=JOB torchrun --nproc-per-node 4 megatron_trainer.py

Requires GPUs: Megatron-Core's schedules know no other device.
"""

import os

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MegatronModule, TransformerConfig

import pfo_gpu.integrations.megatron

WIDTH, MICROBATCH, MICROBATCHES, STEPS = 64, 4, 8, 5


class Stage(MegatronModule):
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, batch):
        return self.layers(batch if self.received is None else self.received)


def forward_step(batches, stage):
    batch = next(batches)

    def loss(output):
        value = torch.nn.functional.mse_loss(output, batch)
        return value, {"loss": value.detach()}

    return stage(batch), loss


on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
stages = torch.distributed.get_world_size()
parallel_state.initialize_model_parallel(pipeline_model_parallel_size=stages)
config = TransformerConfig(
    num_layers=stages,
    hidden_size=WIDTH,
    num_attention_heads=1,
    pipeline_model_parallel_size=stages,
    pipeline_dtype=torch.float32,
)
stage = Stage(config).to(device)
optimizer = torch.optim.AdamW(stage.parameters())

pfo_gpu.integrations.megatron.follow(config, num_microbatches=MICROBATCHES)  # All that pfo takes.

for step in range(STEPS):
    batches = torch.randn(MICROBATCHES, 1, MICROBATCH, WIDTH, device=device)
    losses = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(batches),
        model=stage,
        num_microbatches=MICROBATCHES,
        seq_length=1,
        micro_batch_size=MICROBATCH,
    )
    optimizer.step()
    optimizer.zero_grad()
    if parallel_state.is_pipeline_last_stage():
        print(f"step {step}: loss {sum(of_one['loss'].item() for of_one in losses) / MICROBATCHES:.4f}")

torch.distributed.destroy_process_group()
