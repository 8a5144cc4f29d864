"""A pipeline in plain Python: what a trainer without a framework tells pfo.

Its stages multiply a number by a weight, and learn the weights whose product is 2. It trains until it is
stopped.
"""

import os
import random
import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Optional

import pfo_gpu

MICROBATCHES, RATE = 6, 0.01

rank, stages = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def sockets() -> tuple[Optional[Connection], Optional[Connection]]:
    """The connections to the stages before and after this one."""
    directory = os.environ["PFO_PLAYGROUND_DIRECTORY"]
    listener = Listener(f"{directory}/stage-{rank}", "AF_UNIX") if rank + 1 < stages else None
    before = None
    while rank > 0 and before is None:
        try:
            before = Client(f"{directory}/stage-{rank - 1}", "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.02)
    return before, listener.accept() if listener else None


before, after = sockets()
weight = 1.0
session = pfo_gpu.Session(pp_rank=rank, pp_degree=stages, rank=rank, num_microbatches=MICROBATCHES)


def forward() -> tuple[float, float]:
    """The input of the stage for a microbatch, and the error of its output, which the last stage knows."""
    sample = random.uniform(-1, 1)
    given, source = before.recv() if before else (sample, sample)
    with session.instruction("forward"):
        output = weight * given
    if after:
        after.send((output, source))
    return given, output - 2 * source


def backward(given: float, error: float) -> float:
    """The gradient of the weight for a microbatch."""
    gradient = after.recv() if after else error
    with session.instruction("backward"):
        of_weight, of_input = gradient * given, gradient * weight
    if before:
        before.send(of_input)
    return of_weight


step = 0
while True:
    warmup = min(stages - rank - 1, MICROBATCHES)
    under_way: list[tuple[float, float]] = []
    gradient = 0.0
    with session.step():
        for microbatch in range(MICROBATCHES):
            under_way.append(forward())
            if microbatch >= warmup:
                gradient += backward(*under_way.pop(0))
        while under_way:
            gradient += backward(*under_way.pop(0))
    weight -= RATE * gradient
    if rank == stages - 1:
        print(f"step {step}: weight of the last stage {weight:.4f}", flush=True)
    step += 1
