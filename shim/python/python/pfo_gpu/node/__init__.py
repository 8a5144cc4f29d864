"""Ask the daemons of a node what they measured, tune a job, and change what it runs.

::

    import pfo_gpu

    node = pfo_gpu.Node()
    tuned = node.tune("llama-7b")                       # the job trains meanwhile
    print(tuned.saving, tuned.slowdown)
    print(node.status().job("llama-7b").windows)

It does not require ``pfoctl``, and no other rights than ``pfoctl``: group ``pfo`` for one's own
jobs.
"""

from pfo_gpu._native import NodeError
from pfo_gpu.node.asynchronous import AsyncNode
from pfo_gpu.node.energy import StepEnergy, StepReading
from pfo_gpu.node.node import FleetSwapped, KeptPlan, Node, StoredProfile, Swapped
from pfo_gpu.node.savings import SavedEnergy, Savings
from pfo_gpu.node.status import DaemonStatus, GpuStatus, JobStatus, PlanStatus, RankStatus, Status, Window
from pfo_gpu.node.tuning import Tuned, TuneProgress

__all__ = [
    "AsyncNode",
    "DaemonStatus",
    "FleetSwapped",
    "GpuStatus",
    "JobStatus",
    "KeptPlan",
    "Node",
    "NodeError",
    "PlanStatus",
    "RankStatus",
    "SavedEnergy",
    "Savings",
    "Status",
    "StepEnergy",
    "StepReading",
    "StoredProfile",
    "Swapped",
    "TuneProgress",
    "Tuned",
    "Window",
]
