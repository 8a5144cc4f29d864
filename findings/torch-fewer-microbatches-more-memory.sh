#!/bin/bash
# behaviour: PyTorch's interleaved 1F1B chooses the size of its groups of microbatches by their number: with fewer
#   than twice as many microbatches as ranks, all of them are one group; else a group has as many as there are ranks,
#   or some more if the microbatches are no multiple of the ranks. The warm-up grows with the group. So a step of
#   fewer microbatches may hold more activations at a time: a job that fits into memory with 16 microbatches on 8
#   ranks may not with 15. Megatron-Core's groups are as large as the ranks are many unless configured (0.19.2), so an
#   order or an estimate of memory that says "interleaved 1F1B" without the size of the group is that of one of them.
# seen: torch 2.15.0, the activations (of one microbatch and chunk) that the first rank holds at a time, as PyTorch's
#   own analyze_pipeline_activation_liveness counts:
#   8 ranks, 2 chunks:  8 microbatches: 16   15: 30   16: 23   22: 26   24: 23
#   4 ranks, 4 chunks:  4 microbatches: 16    7: 28    8: 19   10: 22   12: 19
# needs: python3 with venv, PyPI (140 MB: the wheel for macOS, of which it reads one file, is the smallest). Exits
#   with 0 as long as PyTorch does so.
# pfo: plans with PyTorch's groups, or with Megatron's by --microbatch-group (planner/src/schedule/interleaved.rs).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
    --platform macosx_14_0_arm64 torch==2.15.0
venv/bin/python - <<'PYTHON'
import glob
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import zipfile
from unittest.mock import MagicMock

NAME = "torch.distributed.pipelining.schedules"
zipfile.ZipFile(glob.glob("*.whl")[0]).extract(NAME.replace(".", "/") + ".py", "torch-wheel")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """All of torch but its schedules, which compute their orders without tensors."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock()
        module.__spec__, module.__path__ = spec, []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Absent())
spec = importlib.util.spec_from_file_location(NAME, f"torch-wheel/{NAME.replace('.', '/')}.py")
schedules = sys.modules[NAME] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedules)


def held(ranks, chunks, microbatches):
    """The activations that the first rank holds at a time."""
    stages = [
        types.SimpleNamespace(
            group=None,
            group_size=ranks,
            group_rank=0,
            num_stages=ranks * chunks,
            stage_index=chunk * ranks,
            stage_index_to_group_rank={stage: stage % ranks for stage in range(ranks * chunks)},
            is_first=chunk == 0,
            is_last=False,
            has_backward=False,
            submod=MagicMock(),
            device="cpu",
        )
        for chunk in range(chunks)
    ]
    schedule = schedules.ScheduleInterleaved1F1B(stages, microbatches, loss_fn=lambda *_: 0)
    return schedules.analyze_pipeline_activation_liveness(
        schedule,
        pp_rank=0,
        stage_indices=[stage.stage_index for stage in stages],
        granularity="stage_microbatch",
    ).num_slots


expected = {(8, 2): {8: 16, 15: 30, 16: 23, 22: 26, 24: 23}, (4, 4): {4: 16, 7: 28, 8: 19, 10: 22, 12: 19}}
for (ranks, chunks), by_microbatches in expected.items():
    for microbatches, wanted in by_microbatches.items():
        got = held(ranks, chunks, microbatches)
        print(f"{ranks} ranks, {chunks} chunks, {microbatches:2} microbatches: {got} activations")
        if got != wanted:
            sys.exit(f"expected {wanted}: the behaviour has changed")
PYTHON
