"""Trains with a `GradScaler` and an optimizer that un-scales gradients itself, alone and followed."""

import pfo_gpu.integrations.pipelining
import torch
from model import MICROBATCHES, batch, digest
from model import stage as make_module
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Scaled(torch.optim.SGD):
    _step_supports_amp_scaling = True

    def step(self, grad_scaler=None):
        grad_scaler.unscale_(self)
        super().step()


class ScaledByKeyword(Scaled):
    def step(self, *, grad_scaler=None):
        super().step(grad_scaler)


def train(kind, followed):
    """Trains the same stages and optimizer with a new schedule in each of two epochs; returns the weights."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        module = make_module(0)
        optimizer, scaler = kind(module.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
        mse = torch.nn.functional.mse_loss
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        session = None
        for epoch in range(2):
            schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=lambda out, want: scaler.scale(mse(out, want)))
            if followed:
                session = pfo_gpu.integrations.pipelining.follow(schedule, session=session, optimizer=optimizer)
            rates = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            inputs, target = batch(epoch)
            schedule.step(inputs, target=target)
            scaler.step(optimizer)
            scaler.update()
            rates.step()
            optimizer.zero_grad()
        if session is not None:
            session.close()
        return digest([module])
    finally:
        torch.distributed.destroy_process_group()
