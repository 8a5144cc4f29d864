#!/bin/bash
# behaviour: Holistic Trace Analysis' temporal breakdown measures the idle time of a rank between that rank's own first
#   and last kernel, not within the step. Before its first forward and after its last backward a pipeline stage waits
#   for its neighbours, and none of that is idle: of four equal stages under 1F1B, each of which waits for 3/7 of the
#   step, the first shows all of its bubble and the last shows none. The percentages of a rank add up to 100, so
#   nothing looks missing; kernel_time(us) differs between the ranks of one step, which is how one can tell.
# seen: HolisticTraceAnalysis 0.5.0 with pandas 3.1.1, Python 3.11; a step of 21 ms, 4 microbatches, 1 ms a forward,
#   2 ms a backward, each rank busy for 12 ms:
#   rank   idle by HTA   waiting in the step   kernel_time(us)
#      0         42.86                 42.86             21000
#      1         33.33                 42.86             18000
#      2         20.00                 42.86             15000
#      3          0.00                 42.86             12000
# needs: python3 with venv, PyPI. Exits with 0 as long as HTA behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0 pandas==3.1.1
"$work/venv/bin/python" - "$work/traces" 2> "$work/log" <<'PYTHON' || { tail -5 "$work/log"; exit 1; }
import json
import pathlib
import sys

from hta.trace_analysis import TraceAnalysis

STAGES, MICROBATCHES = 4, 4
FORWARD_US, BACKWARD_US = 1000, 2000


def order_of(stage):
    """1F1B: forwards until the pipeline is full, then one backward for each forward."""
    warmup = min(STAGES - stage - 1, MICROBATCHES)
    order = [("F", i) for i in range(warmup)]
    for backward in range(MICROBATCHES):
        if warmup + backward < MICROBATCHES:
            order.append(("F", warmup + backward))
        order.append(("B", backward))
    return order


def replay():
    """When each instruction begins and ends, with transfers that take no time."""
    orders = [order_of(stage) for stage in range(STAGES)]
    ended, free, spans = {}, [0] * STAGES, [[] for _ in range(STAGES)]
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            kind, index = order[0]
            neighbour = stage - 1 if kind == "F" else stage + 1
            source = (kind, neighbour, index) if 0 <= neighbour < STAGES else ("F", stage, index)
            is_first = kind == "F" and stage == 0
            if not is_first and source not in ended:
                continue
            begin = max(free[stage], 0 if is_first else ended[source])
            end = begin + (FORWARD_US if kind == "F" else BACKWARD_US)
            ended[kind, stage, index] = free[stage] = end
            spans[stage].append((kind, begin, end))
            order.pop(0)
    return spans


def trace(rank, spans, step_us):
    """What PyTorch's profiler writes: a launch on the CPU and a kernel on the GPU for each instruction."""
    event = {"ph": "X", "pid": 1, "tid": 1}
    events = [event | {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": step_us, "args": {}}]
    for number, (kind, begin, end) in enumerate(spans, start=1):
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin, "dur": 1}
        events.append(event | launch | {"args": {"correlation": number, "cbid": 211}})
        kernel = {"cat": "kernel", "name": f"{kind}_gemm", "ts": begin, "dur": end - begin, "pid": 0, "tid": 7}
        events.append(event | kernel | {"args": {"correlation": number, "stream": 7, "device": 0}})
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": STAGES}, "traceEvents": events}


folder = pathlib.Path(sys.argv[1])
folder.mkdir()
spans = replay()
step_us = max(end for of_stage in spans for _, _, end in of_stage)
for rank, of_stage in enumerate(spans):
    (folder / f"rank-{rank}.json").write_text(json.dumps(trace(rank, of_stage, step_us)))

table = TraceAnalysis(trace_dir=str(folder)).get_temporal_breakdown(visualize=False).set_index("rank")
print("rank   idle by HTA   waiting in the step   kernel_time(us)")
seen = []
for rank, of_stage in enumerate(spans):
    busy_us = sum(end - begin for _, begin, end in of_stage)
    row = table.loc[rank]
    waiting = 100 * (step_us - busy_us) / step_us
    print(f"{rank:>4}   {row['idle_time_pctg']:>11.2f}   {waiting:>19.2f}   {row['kernel_time(us)']:>15.0f}")
    seen.append((float(row["idle_time_pctg"]), round(waiting, 2), int(row["kernel_time(us)"])))

expected = [(42.86, 42.86, 21000), (33.33, 42.86, 18000), (20.0, 42.86, 15000), (0.0, 42.86, 12000)]
if seen != expected:
    sys.exit(f"seen {seen}, not {expected}: the behaviour has changed")
PYTHON
