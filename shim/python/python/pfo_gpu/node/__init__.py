"""The daemons of a node: what they measured, and what a job is to run.

::

    import pfo_gpu

    node = pfo_gpu.Node()
    profile = node.sweep("llama-7b")                    # the job trains meanwhile
    frontier = pfo_gpu.plan(profile, microbatches=8, p2p_power=node.p2p_power("llama-7b"))
    node.swap("llama-7b", frontier.at("1.005x"), wait=True)
    print(node.status().job("llama-7b").windows)

It requires neither ``pfoctl`` nor more rights than it: group ``pfo`` for one's own jobs.
"""

from pfo_gpu._native import NodeError
from pfo_gpu.node.energy import StepEnergy, StepReading
from pfo_gpu.node.node import Node, StoredProfile, Swapped
from pfo_gpu.node.status import DaemonStatus, GpuStatus, JobStatus, PlanStatus, RankStatus, Status, Window

__all__ = [
    "DaemonStatus",
    "GpuStatus",
    "JobStatus",
    "Node",
    "NodeError",
    "PlanStatus",
    "RankStatus",
    "Status",
    "StepEnergy",
    "StepReading",
    "StoredProfile",
    "Swapped",
    "Window",
]
