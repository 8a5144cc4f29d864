#!/bin/bash
# behaviour: The instructions of DeepSpeed's pipeline schedules name a buffer, not a microbatch, and the number of
#   buffers falls from stage to stage (never below 2). So one microbatch is ForwardPass(3) on the first stage and
#   ForwardPass(1) on the last, ForwardPass(0) is two to four microbatches of a step, and a trace that joins stages by
#   the argument connects microbatches that never met. Only the order on a stage says which microbatch it is.
# seen: deepspeed 0.19.8, 4 stages, 8 microbatches, buffers of the forwards in their order:
#   stage 0: 0 1 2 3 0 1 2 3    stage 1: 0 1 2 0 1 2 0 1    stages 2 and 3: 0 1 0 1 0 1 0 1
# needs: python3 with pip, PyPI. It reads one file of the source archive, without PyTorch. Exits with 0 as long as
#   DeepSpeed does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check setuptools==80.9.0 wheel==0.45.1
# The metadata of the archive are of no interest; building them needs nothing that is not here.
venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
    deepspeed==0.19.8
tar -xzf deepspeed-0.19.8.tar.gz deepspeed-0.19.8/deepspeed/runtime/pipe/schedule.py
venv/bin/python - <<'PYTHON'
import importlib.util
import sys
import types

# schedule.py imports one function of its package, which prints calls; the rest of the package needs PyTorch.
for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.pipe"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
utils = types.ModuleType("deepspeed.runtime.utils")
utils.call_to_str = lambda name, *_, **__: name
sys.modules[utils.__name__] = utils
spec = importlib.util.spec_from_file_location(
    "deepspeed.runtime.pipe.schedule", "deepspeed-0.19.8/deepspeed/runtime/pipe/schedule.py"
)
schedule = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedule)

expected = {0: [0, 1, 2, 3, 0, 1, 2, 3], 1: [0, 1, 2, 0, 1, 2, 0, 1], 2: [0, 1] * 4, 3: [0, 1] * 4}
for stage, buffers in expected.items():
    for kind in (schedule.ForwardPass, schedule.BackwardPass):
        steps = schedule.TrainSchedule(micro_batches=8, stages=4, stage_id=stage).steps()
        seen = [command.buffer_id for commands in steps for command in commands if isinstance(command, kind)]
        print(f"stage {stage}, {kind.__name__:<12} microbatches 0 to 7 are in buffers {seen}")
        if seen != buffers:
            sys.exit(f"expected {buffers}: the behaviour has changed")
PYTHON
