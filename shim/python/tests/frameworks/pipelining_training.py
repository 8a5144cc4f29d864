"""Trains with a schedule of `torch.distributed.pipelining`."""

import orders
import pfo_gpu.integrations.pipelining
import torch
from model import MICROBATCHES, batch, bits, digest
from model import stage as make_module
from node import PATIENCE_S
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleZBVZeroBubble,
    get_schedule_class,
)

INSTRUCTIONS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def train(schedule, steps, followed, reach, evaluate=False):
    """Trains, and returns the losses of each step, the weights, and what the schedule runs in a step."""
    kind = get_schedule_class(schedule)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if issubclass(kind, PipelineScheduleSingle):
        own, of_all = [rank], ranks
    elif kind in (ScheduleZBVZeroBubble, ScheduleDualPipeV):
        own, of_all = [rank, 2 * ranks - 1 - rank], 2 * ranks
    else:
        own, of_all = [rank, ranks + rank], 2 * ranks
    modules = [make_module(index) for index in own]
    stages = [
        PipelineStage(module, index, of_all, torch.device("cpu")) for module, index in zip(modules, own)
    ]
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD([weight for module in modules for weight in module.parameters()], lr=0.1)
    session = None
    if followed:
        session = pfo_gpu.integrations.pipelining.follow(
            schedule,
            stages[0] if single else stages,
            num_microbatches=MICROBATCHES,
            setup_timeout_s=PATIENCE_S,
        )
    inputs = lambda step: [batch(step)[0]] if 0 in own else []
    last = of_all - 1 in own
    losses = []
    for step in range(steps):
        reach(step)
        of_step = [] if last else None
        target = batch(step)[1] if last else None
        schedule.step(*inputs(step), target=target, losses=of_step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([bits(loss) for loss in of_step or []])
        if evaluate:
            schedule.eval(*inputs(step), target=target, losses=[] if last else None)
    if session is not None:
        session.close()
    return {"losses": losses, "weights": digest(modules), "order": order(schedule, own, rank)}


def order(schedule, own, rank):
    """What the schedule runs in a step: what it says itself or, if it is one of the simple ones, by definition."""
    if isinstance(schedule, ScheduleGPipe):
        return orders.gpipe(MICROBATCHES)
    if isinstance(schedule, Schedule1F1B):
        # What PyTorch 2.15 says of the last stage begins with microbatch 1; what it runs does not.
        return orders.one_forward_one_backward(own[0], torch.distributed.get_world_size(), MICROBATCHES)
    return [
        [INSTRUCTIONS[action.computation_type.value], action.microbatch_index, own.index(action.stage_index)]
        for action in schedule.pipeline_order_with_comms[rank]
        if action.computation_type.value in INSTRUCTIONS
    ]
