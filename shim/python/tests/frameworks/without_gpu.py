"""What lets frameworks train that look for a GPU, or for a compiler, where there is neither."""

from contextlib import ExitStack
from unittest.mock import patch

import deepspeed
from torch.overrides import TorchFunctionMode

# DeepSpeed would compile it now, for something that gloo does as well.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class CudaIsTheCpu(TorchFunctionMode):
    """What would be made on the GPU is made on the CPU: Megatron-Core's schedules know no other device."""

    def __init__(self):
        super().__init__()
        self._patches = ExitStack()

    def __enter__(self):
        self._patches.enter_context(patch("torch.cuda.current_device", lambda: "cpu"))
        self._patches.enter_context(patch("torch.cuda.synchronize", lambda: None))
        return super().__enter__()

    def __exit__(self, *exception):
        self._patches.close()
        return super().__exit__(*exception)

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = dict(named or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return function(*arguments, **named)
