"""Prints the orders that peers' own code makes, one JSON object a line.

Each has the peer's ``schedule``, the numbers that it was made for and its ``file``, in the peer's own words.
A peer that is not installed prints what is missing instead.
"""

import json
import sys

SIZES = [(pp, m) for pp in (1, 2, 3, 4, 8) for m in sorted({1, pp, pp + 1, 2 * pp - 1, 2 * pp, 3 * pp, 10})]


def put(schedule, pp, m, file, chunks=1, group=None, extra=False):
    line = dict(schedule=schedule, stages=pp, microbatches=m, chunks=chunks, group=group, extra=extra, file=file)
    print(json.dumps(line))


def torch():
    from torch.distributed.pipelining import schedules

    class Stage:
        pass

    def made(kind, pp, m, chunks):
        schedule = object.__new__(kind)
        schedule.pp_group_size, schedule._n_microbatches, schedule.n_local_stages = pp, m, chunks
        schedule._stages = [Stage()] * chunks
        schedule.num_stages, schedule.rank, schedule.n_microbatches = pp * chunks, 0, m
        schedule.number_of_rounds = max(1, m // pp)
        schedule.microbatches_per_round = m // schedule.number_of_rounds
        rows = [schedule._calculate_single_rank_operations(rank) for rank in range(pp)]
        return "\n".join(",".join("" if action is None else str(action) for action in row) for row in rows)

    for pp, m in SIZES:
        for chunks in (1, 2, 3):
            put("looped-bfs", pp, m, made(schedules.ScheduleLoopedBFS, pp, m, chunks), chunks)
            # The check of both constructors.
            if m % max(1, m // pp) == 0:
                kind = schedules.ScheduleInterleavedZeroBubble
                put("interleaved-zero-bubble", pp, m, made(kind, pp, m, chunks), chunks)
                if chunks > 1:
                    kind = schedules.ScheduleInterleaved1F1B
                    put("interleaved-1f1b", pp, m, made(kind, pp, m, chunks), chunks)
        put("zb-v", pp, m, made(schedules.ScheduleZBVZeroBubble, pp, m, 2), 2)
        if m >= 2 * pp:
            put("dualpipe-v", pp, m, made(schedules.ScheduleDualPipeV, pp, m, 2), 2)


def megatron():
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.cuda_graphs import convert_schedule_table_to_order

    class Group:
        def __init__(self, pp, rank):
            self.size, self.rank = lambda: pp, lambda: rank

    class Communicator:
        def __init__(self, pp, rank, chunks):
            self.pp_group, self.virtual_pipeline_model_parallel_size = Group(pp, rank), chunks

    for pp, m in SIZES:
        groups = [group for group in range(pp, m + 1) if m % group == 0 or m % group >= pp]
        for group in groups if pp > 1 else ():
            for chunks in (2, 3):
                for extra in (False, True):
                    table = schedules.get_schedule_table(m, chunks, group)
                    orders = []
                    for rank in range(pp):
                        said = Communicator(pp, rank, chunks)
                        counts = schedules.get_pp_rank_microbatches(m, chunks, group, False, extra, said)
                        orders.append(convert_schedule_table_to_order(counts[2], chunks, table))
                    put("interleaved-1f1b", pp, m, str(orders), chunks, group, extra)


def deepspeed():
    from deepspeed.runtime.pipe.schedule import TrainSchedule

    for pp, m in SIZES:
        steps = [[list(step) for step in TrainSchedule(m, pp, stage).steps()] for stage in range(pp)]
        put("1f1b", pp, m, str(steps))


for peer in (torch, megatron, deepspeed):
    try:
        peer()
    except ImportError as error:
        print(f"skipped: {peer.__name__}: {error}", file=sys.stderr)
