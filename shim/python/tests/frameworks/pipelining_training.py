"""Trains with a schedule of `torch.distributed.pipelining`."""

from types import SimpleNamespace

import orders
import pfo_gpu.integrations.pipelining
import torch
from model import MICROBATCHES, batch, bits, digest
from model import stage as make_module
from node import PATIENCE_S
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleZBVZeroBubble,
    _ComputationType,
    _wait_batch_p2p,
    get_schedule_class,
)

INSTRUCTIONS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
# From 2.15 on a schedule begins the reduction in one action, and waits for it in another.
REDUCTION = getattr(_ComputationType, "WAIT_REDUCE_GRAD", _ComputationType.REDUCE_GRAD).value


def train(
    schedule,
    steps,
    followed,
    reach,
    evaluate=False,
    sharded=False,
    with_optimizer=False,
    overlap=False,
    custom=(),
    run_by="step",
):
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
    if sharded:
        mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("pp", "dp"))
        modules = [fully_shard(module, mesh=mesh["dp"]) for module in modules]
    stages = [
        PipelineStage(module, index, of_all, torch.device("cpu")) for module, index in zip(modules, own)
    ]
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    if overlap:
        schedule.register_custom_function(_ComputationType.OVERLAP_F_B, pair)
    for name in custom:
        schedule.register_custom_function(_ComputationType[name], compute)
    taken_before = schedule.step
    optimizer = torch.optim.SGD([weight for module in modules for weight in module.parameters()], lr=0.1)
    session = None
    if followed:
        session = pfo_gpu.integrations.pipelining.follow(
            SimpleNamespace(schedule=schedule) if run_by == "a runtime" else schedule,
            None if run_by == "a runtime" else stages[0] if single else stages,
            num_microbatches=MICROBATCHES,
            setup_timeout_s=PATIENCE_S,
            optimizer=optimizer if with_optimizer else None,
        )
    learning_rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    inputs = lambda step: [batch(step)[0]] if 0 in own else []
    last = of_all - 1 in own
    losses = []
    for step in range(steps):
        reach(step)
        of_step = [] if last else None
        target = batch(step)[1] if last else None
        if run_by == "_step_microbatches":
            split(schedule, inputs(step), target, of_step)
        else:
            (taken_before if run_by == "taken before" else schedule.step)(*inputs(step), target=target, losses=of_step)
        optimizer.step()
        optimizer.zero_grad()
        learning_rates.step()
        losses.append([bits(loss) for loss in of_step or []])
        if evaluate:
            schedule.eval(*inputs(step), target=target, losses=[] if last else None)
    if session is not None:
        session.close()
    ran = order(schedule, own, rank, sharded)
    ran += [["optimizer_step", 0, 0]] if with_optimizer else []
    return {"losses": losses, "weights": digest(modules), "order": ran}


def order(schedule, own, rank, sharded):
    """What the schedule runs in a step: what it says itself or, if it is one of the simple ones, by definition."""
    reduction = [["collective", 0, 0]] if sharded else []
    if isinstance(schedule, ScheduleGPipe):
        return orders.gpipe(MICROBATCHES) + reduction
    if isinstance(schedule, Schedule1F1B):
        # What PyTorch 2.15 says of the last stage begins with microbatch 1; what it runs does not.
        ranks = torch.distributed.get_world_size()
        return orders.one_forward_one_backward(own[0], ranks, MICROBATCHES) + reduction
    names = {**INSTRUCTIONS, **({REDUCTION: "collective"} if sharded else {})}
    registered = {kind.name for kind in schedule._comp_type_to_function_map}
    names.update({_ComputationType[name].value: "collective" for name in registered & COLLECTIVES})
    overlaps = _ComputationType.OVERLAP_F_B in schedule._comp_type_to_function_map
    ran = []
    for action in schedule.pipeline_order_with_comms[rank]:
        if action.sub_actions and overlaps:
            backward = action.sub_actions[1]
            ran.append(["forward_backward", backward.microbatch_index, own.index(backward.stage_index)])
            continue
        for single in action.sub_actions or [action]:
            if (name := names.get(single.computation_type.value)) is not None:
                chunk, index = own.index(single.stage_index), single.microbatch_index
                if index is None:
                    index = sum(unit[0] == name and unit[2] == chunk for unit in ran)
                ran.append([name, index, chunk])
    return ran


COLLECTIVES = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"}


def split(schedule, inputs, target, losses):
    """Runs a step on microbatches that the trainer has split, as those with packed sequences do."""
    for stage in getattr(schedule, "_stages", None) or [schedule._stage]:
        stage.has_backward = True
        stage.clear_runtime_states()
    schedule._finalize_gradients = True
    split_inputs = [(of,) for of in inputs[0].chunk(MICROBATCHES)] if inputs else [()] * MICROBATCHES
    targets = None if target is None else list(target.chunk(MICROBATCHES))
    schedule._step_microbatches(split_inputs, [{}] * MICROBATCHES, targets, losses)


def compute(action, context):
    """Runs an action in place of the schedule, by the class's methods, as a trainer with graphs of its own does."""
    schedule, kind = context.schedule_ref, action.computation_type.name
    stages = {stage.stage_index: stage for stage in schedule._stages}
    stage, index = stages[action.stage_index], action.microbatch_index
    run = type(stage)
    if kind in COLLECTIVES:
        if kind == "REDUCE_GRAD":
            run.perform_reduce_grad(stage, MICROBATCHES if schedule.scale_grads else 1)
    elif kind == "FORWARD":
        if not stage.is_first and stage.stage_index - 1 not in stages:
            _wait_batch_p2p(schedule.fwd_recv_ops.pop((stage.stage_index, index)))
        output = run.forward_one_chunk(stage, index, context.arg_mbs[index], context.kwarg_mbs[index])
        schedule._maybe_compute_loss(stage, output, context.target_mbs, index)
        if stage.stage_index + 1 in stages:
            stages[stage.stage_index + 1].set_local_fwd_input(output, index)
    elif kind == "BACKWARD_WEIGHT":
        last = counted(schedule, stage)
        run.backward_weight_one_chunk(stage, index, last_backward=last)
    else:
        whole = kind == "FULL_BACKWARD"
        if not stage.is_last and stage.stage_index + 1 not in stages:
            _wait_batch_p2p(schedule.bwd_recv_ops.pop((stage.stage_index, index)))
        loss = schedule._maybe_get_loss(stage, index)
        last = whole and counted(schedule, stage)
        run.backward_one_chunk(stage, index, loss=loss, full_backward=whole, last_backward=last)
        if stage.stage_index - 1 in stages:
            stages[stage.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(index), index)


def counted(schedule, stage):
    """Whether this is the last backward of a stage."""
    schedule.backward_counter[stage.stage_index] += 1
    return schedule.backward_counter[stage.stage_index] == MICROBATCHES


def pair(action, context):
    """Runs a forward and a backward in place of the schedule, as a trainer does that overlaps them."""
    schedule = context.schedule_ref
    stages = {stage.stage_index: stage for stage in schedule._stages}
    forward, backward = action.sub_actions
    stage, index = stages[forward.stage_index], forward.microbatch_index
    if not stage.is_first and stage.stage_index - 1 not in stages:
        _wait_batch_p2p(schedule.fwd_recv_ops.pop((stage.stage_index, index)))
    output = stage.forward_one_chunk(index, context.arg_mbs[index], context.kwarg_mbs[index])
    schedule._maybe_compute_loss(stage, output, context.target_mbs, index)
    if stage.stage_index + 1 in stages:
        stages[stage.stage_index + 1].set_local_fwd_input(output, index)
    stage, index = stages[backward.stage_index], backward.microbatch_index
    if not stage.is_last and stage.stage_index + 1 not in stages:
        _wait_batch_p2p(schedule.bwd_recv_ops.pop((stage.stage_index, index)))
    schedule.backward_counter[stage.stage_index] += 1
    last = schedule.backward_counter[stage.stage_index] == MICROBATCHES
    loss = schedule._maybe_get_loss(stage, index)
    stage.backward_one_chunk(index, loss=loss, full_backward=True, last_backward=last)
    if stage.stage_index - 1 in stages:
        stages[stage.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(index), index)
