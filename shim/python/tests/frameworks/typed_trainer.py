"""What type checkers see of a trainer, with PyTorch's own types. It is not run.

Where a call is wrong, its line says which error is expected; an error that does not come is one, too.
"""

import mlflow
import wandb
from torch import Tensor, nn, optim
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.utils.tensorboard.writer import SummaryWriter

import pfo_gpu
import pfo_gpu.integrations.pipelining
from pfo_gpu.node import StepReading


def train(stage: PipelineStage, other: PipelineStage) -> None:
    schedule = Schedule1F1B(stage, 8, loss_fn=nn.functional.mse_loss)
    session = pfo_gpu.integrations.pipelining.follow(schedule)
    interleaved = ScheduleInterleaved1F1B([stage, other], 8)
    optimizer = optim.AdamW(stage.submod.parameters())
    pfo_gpu.integrations.pipelining.follow(interleaved, [stage, other], session, optimizer=optimizer)
    assert session is not None
    with session.step(), session.instruction("forward", microbatch=0):
        pass
    session.instruction("froward")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def report(stage: int, batches: list[int], microbatches: int) -> None:
    session = pfo_gpu.Session(pp_rank=stage, pp_degree=4)

    for _ in batches:
        with session.step():
            for m in range(microbatches):
                with session.instruction("forward", microbatch=m):
                    pass


class LightningLogger:
    """What Lightning's ``CSVLogger`` declares; the environment of this test has no Lightning."""

    def log_metrics(self, metrics: dict[str, Tensor | float], step: int | None = None) -> None:
        print(metrics, step)


class Accelerator:
    """What Accelerate's declares."""

    def log(self, values: dict[str, object], step: int | None = None, log_kwargs: object = None) -> None:
        print(values, step, log_kwargs)


def log(session: pfo_gpu.Session, writer: SummaryWriter, run: wandb.Run) -> None:
    with pfo_gpu.StepEnergy(session) as energy:
        energy.log_to(writer, 3)
        energy.log_to(run, 3)
        energy.log_to(mlflow, 3)
        energy.log_to(LightningLogger(), 3)
        energy.log_to(Accelerator(), 3)
        energy.log_to(lambda metrics, step: print(metrics["pfo/step_energy_j"], step), 3)
        energy.log_to(7, 3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        reading: StepReading | None = energy.latest
        print(reading)


def swap(job: str) -> float:
    node = pfo_gpu.Node()
    frontier = pfo_gpu.plan(node.sweep(job), p2p_power=node.p2p_power(job), microbatches=8)
    node.swap(job, frontier.at("1.005x"), wait=True)
    fastest: pfo_gpu.Plan = frontier[0]
    others: list[pfo_gpu.Plan] = frontier[1:]
    print(fastest, others)
    return node.status().job(job).windows[-1].iteration_time_s
