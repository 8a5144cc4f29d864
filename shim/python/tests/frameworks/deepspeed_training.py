"""Trains with DeepSpeed's pipeline engine."""

import deepspeed
import pfo_gpu.integrations.deepspeed
import torch
import without_gpu  # noqa: F401
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.schedule import (
    BackwardPass,
    ForwardPass,
    LoadMicroBatch,
    OptimizerStep,
    ReduceGrads,
    TrainSchedule,
)
from model import BATCH, MICROBATCHES, batch, bits, digest, stage
from node import PATIENCE_S

CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH // MICROBATCHES,
    "gradient_accumulation_steps": MICROBATCHES,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "steps_per_print": 1000,
}
# The reduction of tied gradients comes right before the other one, and is told with it.
NAMES = {
    LoadMicroBatch: "load",
    ForwardPass: "forward",
    BackwardPass: "backward",
    ReduceGrads: "collective",
    OptimizerStep: "optimizer_step",
}


def train(steps, followed, reach, dual_pipe_v=False, evaluate=False):
    """Trains, and returns the losses of each step, the weights, and what the schedule runs in a step."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    deepspeed.init_distributed("gloo")
    stages = 2 * ranks if dual_pipe_v else ranks
    layers = [layer for index in range(stages) for layer in stage(index)]
    kind = deepspeed.pipe.DualPipeVModule if dual_pipe_v else PipelineModule
    module = kind(layers, num_stages=ranks, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
    engine, *_ = deepspeed.initialize(model=module, config=CONFIG)
    session = pfo_gpu.integrations.deepspeed.follow(engine, setup_timeout_s=PATIENCE_S) if followed else None
    losses = []
    for step in range(steps):
        reach(step)
        losses.append(bits(engine.train_batch(microbatches(step))))
        if evaluate:
            engine.eval_batch(microbatches(step))
    if session is not None:
        session.close()
    kind = deepspeed.runtime.pipe.schedule.DualPipeVSchedule if dual_pipe_v else TrainSchedule
    schedule = kind(MICROBATCHES, ranks, rank)
    return {"losses": losses, "weights": digest([module]), "order": order(schedule)}


def microbatches(step):
    inputs, targets = batch(step)
    return iter(list(zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES))))


def order(schedule):
    """What DeepSpeed's own schedule has a stage run in a step but transfers, each microbatch counted."""
    units, counted = [], {}
    for instructions in schedule:
        for instruction in instructions:
            name = NAMES.get(type(instruction))
            if name is not None:
                chunk = instruction.kwargs.get("phase", 0)
                microbatch = counted[name, chunk] = counted.get((name, chunk), -1) + 1
                units.append([name, microbatch, chunk])
    return units
