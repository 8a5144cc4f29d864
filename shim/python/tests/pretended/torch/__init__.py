"""As much of PyTorch as makes two processes believe that they wait on two GPUs."""

import os
from types import SimpleNamespace

__version__ = "pretended"
_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")

cuda = SimpleNamespace(
    is_available=lambda: True,
    init=lambda: None,
    device_count=lambda: len(_gpus),
    set_device=lambda ordinal: None,
    synchronize=lambda: None,
)


def zeros(size, device):
    return [0.0] * size
