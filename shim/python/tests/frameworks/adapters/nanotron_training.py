"""Trains with Nanotron's pipeline engines. Its trainer requires NCCL, and this stands for it."""

import sys
from types import ModuleType, SimpleNamespace

import orders
import torch
from model import BATCH, MICROBATCHES, batch, bits, digest, stage
from node import PATIENCE_S

import pfo_gpu.integrations.nanotron


def _import_logging():
    # In the release on PyPI this module and the configuration import each other, and neither can be first.
    names = ("nanotron.config", "nanotron.config.config")
    for name in names:
        config = sys.modules[name] = ModuleType(name)
        config.Config = config.LoggingArgs = object
    import nanotron.logging  # noqa: F401

    for name in names:
        del sys.modules[name]


_import_logging()

from nanotron.parallel.pipeline_parallel.block import PipelineBlock  # noqa: E402
from nanotron.parallel.pipeline_parallel.engine import (  # noqa: E402
    AllForwardAllBackwardPipelineEngine,
    OneForwardOneBackwardPipelineEngine,
)
from nanotron.parallel.pipeline_parallel.p2p import P2P  # noqa: E402
from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer  # noqa: E402


class Loss(torch.nn.Module):
    def __init__(self, index):
        super().__init__()
        self.layers = stage(index)

    def forward(self, values, target):
        return {"loss": torch.nn.functional.mse_loss(self.layers(values), target)}


class Model(torch.nn.Module):
    """A block for each stage; the last one has the loss."""

    def __init__(self, p2p, stages):
        super().__init__()
        self.blocks = torch.nn.ModuleList()
        for index in range(stages - 1):
            block = PipelineBlock(p2p, lambda index=index: stage(index), {}, {"input"}, {"values"})
            self.blocks.append(block)
        self.blocks.append(PipelineBlock(p2p, lambda: Loss(stages - 1), {}, {"values", "target"}, {"loss"}))
        for index, block in enumerate(self.blocks):
            block.build_and_set_rank(index)

    def forward(self, input, target):
        values = self.blocks[0](input=input)
        for block in self.blocks[1:-1]:
            values = block(input=values["values"])
        return self.blocks[-1](values=values["values"], target=target)["loss"]


class Trainer:
    """What Nanotron's trainer does in a step, with the attributes that are read of it."""

    def __init__(self, engine):
        group = torch.distributed.group.WORLD
        alone = torch.distributed.new_subgroups(1)[0]
        self.rank, self.ranks = group.rank(), group.size()
        self.config = SimpleNamespace(parallelism=SimpleNamespace(pp_engine=engine))
        self.parallel_context = SimpleNamespace(pp_pg=group, dp_pg=alone, tp_pg=alone)
        self.n_micro_batches_per_batch, self.start_iteration_step = MICROBATCHES, 0
        self.model = Model(P2P(group, torch.device("cpu")), self.ranks)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def training_step(self, dataloader):
        outputs = self.config.parallelism.pp_engine.train_batch_iter(
            model=self.model,
            pg=self.parallel_context.pp_pg,
            batch=dataloader,
            nb_microbatches=MICROBATCHES,
            grad_accumulator=None,
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return [output["loss"] for output in outputs]


def train(steps, followed, reach, one_forward_one_backward):
    """Trains, and returns the losses of each step, the weights, and what the schedule runs in a step."""
    kind = OneForwardOneBackwardPipelineEngine if one_forward_one_backward else AllForwardAllBackwardPipelineEngine
    trainer = Trainer(kind())
    session = None
    for _ in range(2 if followed else 0):
        session = pfo_gpu.integrations.nanotron.follow(trainer, setup_timeout_s=PATIENCE_S)
    torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0)
    losses = []
    for step in range(steps):
        reach(step)
        of_step = trainer.training_step(dataloader=microbatches(step, trainer.rank, trainer.ranks))
        losses.append([bits(loss) for loss in of_step if not isinstance(loss, TensorPointer)])
    if session is not None:
        session.close()
    if one_forward_one_backward:
        order = orders.one_forward_one_backward(trainer.rank, trainer.ranks, MICROBATCHES)
    else:
        order = orders.gpipe(MICROBATCHES)
    order = [*order, ["optimizer_step", 0, 0]]
    return {"losses": losses, "weights": digest([trainer.model]), "order": order}


def microbatches(step, rank, ranks):
    inputs, targets = (values.split(BATCH // MICROBATCHES) for values in batch(step))
    for input, target in zip(inputs, targets):
        yield {
            "input": input if rank == 0 else TensorPointer(group_rank=0),
            "target": target if rank == ranks - 1 else TensorPointer(group_rank=ranks - 1),
        }
