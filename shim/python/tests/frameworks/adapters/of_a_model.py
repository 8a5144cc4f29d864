"""A model that is trained on one GPU, and what its steps are told as."""

import torch
from model import WIDTH, digest, stage
from torch.utils.data import Dataset

BATCHES, ACCUMULATED, STEPS = 2, 2, 3
MICROBATCHES = BATCHES * ACCUMULATED


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = stage(0)

    def forward(self, input, target):
        return {"loss": torch.nn.functional.mse_loss(self.layers(input), target)}

    def digest(self):
        return digest([self])


class Data(Dataset):
    """Enough for all steps."""

    def __len__(self):
        return BATCHES * ACCUMULATED * STEPS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {name: torch.randn(WIDTH, generator=generator) for name in ("input", "target")}


def marks(steps=STEPS, *more):
    """What a session hears of steps that accumulate."""
    told = []
    for step in range(steps):
        units = [f"{name} {m}" for m in range(ACCUMULATED) for name in ("forward", "backward")]
        told.append(f"step {step}")
        for unit in [*units, "optimizer_step 0"]:
            told += [unit, f"end of {unit}"]
        told.append(f"end of step {step}")
    return [*told, *more]
