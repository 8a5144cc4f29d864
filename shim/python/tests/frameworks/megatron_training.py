"""Trains with Megatron-Core's schedules, which know no device but CUDA: here that is the CPU."""

import importlib.util
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import megatron.core
import orders
import pfo_gpu.integrations.megatron
import pfo_gpu.integrations.megatron_bridge
import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.timers import Timers
from megatron.core.transformer import TransformerConfig
from model import BATCH, MICROBATCHES, WIDTH, batch, bits, digest, stage
from node import PATIENCE_S
from without_gpu import CudaIsTheCpu

MICROBATCH = BATCH // MICROBATCHES


class Chunk(torch.nn.Module):
    """A chunk of the model, with what the schedules ask of one."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config, index, of_all):
        super().__init__()
        self.config = config
        self.layers = stage(index)
        self.is_first, self.is_last = index == 0, index == of_all - 1
        self.received = None
        # What the end of a step asks for.
        self.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
        self.pre_process, self.share_embeddings_and_output_weights = self.is_first, False

    def finish_grad_sync(self, force_all_reduce=False):
        """There is one replica."""

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, inputs):
        return self.layers(inputs if self.is_first else self.received)


def train(steps, followed, reach, chunks=1, evaluate=False, overlapped=False, bridged=False):
    """Trains, and returns the losses of each step, the weights, and what the schedule runs in a step."""
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None
    )
    try:
        with CudaIsTheCpu():
            return _train(steps, followed, reach, chunks, evaluate, overlapped, bridged)
    finally:
        parallel_state.destroy_model_parallel()


def bridge(config, timers, **rank):
    """Follows as a training of Megatron-Bridge does, whose package as a whole requires a GPU."""
    file = Path(megatron.core.__file__).parents[1] / "bridge" / "training" / "callbacks.py"
    spec = importlib.util.spec_from_file_location("bridge_callbacks", file)
    callbacks = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = callbacks
    spec.loader.exec_module(callbacks)

    callback = pfo_gpu.integrations.megatron_bridge.callback(**rank)
    state = SimpleNamespace(timers=timers, train_state=SimpleNamespace(step=0))
    context = callbacks.CallbackContext(state=state, model=[SimpleNamespace(config=config)])
    callbacks.normalize_callbacks([callback]).fire("on_train_start", context)
    return callback.session


def _train(steps, followed, reach, chunks, evaluate, overlapped, bridged):
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config = TransformerConfig(
        num_layers=ranks * chunks,
        hidden_size=WIDTH,
        num_attention_heads=1,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=torch.float32,
    )
    model = [Chunk(config, chunk * ranks + rank, ranks * chunks) for chunk in range(chunks)]
    config.overlap_moe_expert_parallel_comm = overlapped
    config.finalize_model_grads_func = finalize_model_grads
    session, timers = None, None
    if chunks > 1:
        # As in Megatron-LM, which has timers and makes its chunks one by one.
        config.timers = timers = Timers(log_level=2, log_option="minmax")
    for _ in model if followed else []:
        follow = bridge if bridged else pfo_gpu.integrations.megatron.follow
        session = follow(
            config, timers, num_microbatches=MICROBATCHES, setup_timeout_s=PATIENCE_S
        )
    config.overlap_moe_expert_parallel_comm = False
    optimizer = torch.optim.SGD([weight for chunk in model for weight in chunk.parameters()], lr=0.1)
    run = get_forward_backward_func()
    losses = []

    def step_through(step, forward_only):
        inputs, targets = (values.view(MICROBATCHES, 1, MICROBATCH, WIDTH) for values in batch(step))

        def forward_step(iterator, chunk):
            inputs, target = next(iterator)

            def loss(output):
                value = torch.nn.functional.mse_loss(output, target)
                return value, {"loss": value.detach()}

            return chunk(inputs), loss

        return run(
            forward_step_func=forward_step,
            data_iterator=[iter(list(zip(inputs, targets))) for _ in model],
            model=model,
            num_microbatches=MICROBATCHES,
            seq_length=1,
            micro_batch_size=MICROBATCH,
            forward_only=forward_only,
        )

    for step in range(steps):
        reach(step)
        losses.append([bits(of_microbatch["loss"]) for of_microbatch in step_through(step, False)])
        optimizer.step()
        optimizer.zero_grad()
        if evaluate:
            with torch.no_grad():
                step_through(step, True)
    if session is not None:
        session.close()
    # A checkpoint may hold the configuration.
    assert type(pickle.loads(pickle.dumps(config)).timers) in (Timers, type(None))
    if timers is not None and steps:
        assert timers("forward-compute").active_time() > 0
    return {"losses": losses, "weights": digest(model), "order": order(rank, ranks, chunks)}


def order(rank, ranks, chunks):
    """What a stage runs in a step: 1F1B or interleaved 1F1B, by their definition."""
    reduction = ["collective", 0, 0]
    if chunks == 1:
        return [*orders.one_forward_one_backward(rank, ranks, MICROBATCHES), reduction]
    units = get_schedule_table(MICROBATCHES, chunks, ranks)
    forwards = [["forward", microbatch, chunk] for microbatch, chunk in units]
    backwards = [["backward", microbatch, chunks - 1 - chunk] for microbatch, chunk in units]
    warm_up = min(len(units), 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
    steady = [unit for pair in zip(forwards[warm_up:], backwards) for unit in pair]
    return [*forwards[:warm_up], *steady, *backwards[len(units) - warm_up :], reduction]
