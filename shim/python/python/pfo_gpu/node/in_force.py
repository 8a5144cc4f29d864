"""Whether the GPUs of a job do what its plan asks of them: a driver may accept a lock and ignore it, and
another program may set another."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, Optional

from pfo_gpu.node.status import GpuStatus, RankStatus, Status

# As pfoctl looks: until then, a GPU may show what it ran before.
_SET_WITHIN_S = 0.2
_LOOK_FOR_S = 2.0
_LOOK_EVERY_S = 0.05

# Further than the clocks of any model are apart, and looks above a lock that are no chance.
_NEAR_MHZ = 30
_SURE = 10


@dataclass
class _Looks:
    above: int = 0
    held: bool = False

    def add(self, is_locked: bool, gpu: GpuStatus) -> None:
        is_above = is_locked and _is_above(gpu)
        self.above += is_above
        self.held |= (gpu.requested_mhz is not None) == is_locked and not is_above


def missing(status: Callable[[], Status], job: str, uid: Optional[int]) -> Optional[str]:
    """Looks at a job after a swap until every GPU has shown its lock, or is known to have none.
    Returns what is not in force and why, if something is not."""
    time.sleep(_SET_WITHIN_S)
    until_s = time.monotonic() + _LOOK_FOR_S
    looks: dict[int, _Looks] = {}
    while True:
        now = status()
        found = [known for known in now.jobs if known.job == job and uid in (None, known.uid)]
        if len(found) != 1:
            return None
        gpus = {gpu.uuid: gpu for gpu in now.gpus}
        plan = found[0].plan
        if plan is not None and plan.suspended:
            return f"the plan is suspended: {plan.suspended}"
        for rank in found[0].ranks:
            looks.setdefault(rank.rank, _Looks()).add(plan is not None, gpus[rank.gpu_uuid])
        is_over = time.monotonic() > until_s
        for rank in found[0].ranks:
            gpu, of_rank = gpus[rank.gpu_uuid], looks[rank.rank]
            why = rank.problem or (gpu.problem if is_over or _is_above(gpu) else None)
            if why is None and is_over and not of_rank.held:
                why = _shown(plan is not None, of_rank, gpu)
            if why is not None and not of_rank.held:
                return _of(rank, gpu, why)
        if is_over or all(of_rank.held for of_rank in looks.values()):
            return None
        time.sleep(_LOOK_EVERY_S)


def _is_above(gpu: GpuStatus) -> bool:
    both = gpu.requested_mhz is not None and gpu.observed_mhz is not None
    return both and gpu.observed_mhz > gpu.requested_mhz + _NEAR_MHZ  # type: ignore[operator]


def _shown(is_locked: bool, looks: _Looks, gpu: GpuStatus) -> Optional[str]:
    if not is_locked:
        return None if gpu.requested_mhz is None else f"it is still locked to {gpu.requested_mhz} MHz"
    if looks.above < _SURE:
        return None
    return (
        f"it runs at {gpu.observed_mhz} MHz although pfod has locked {gpu.requested_mhz} MHz: another program has set"
        " its clock, or the driver ignores the lock"
    )


def _of(rank: RankStatus, gpu: GpuStatus, why: str) -> str:
    return f"rank {rank.rank} (GPU {gpu.index}): {why}"
