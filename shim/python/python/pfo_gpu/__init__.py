"""Report to pfod what a training rank does, so that each forward and backward has its own clock.

::

    import pfo_gpu

    session = pfo_gpu.Session(pp_rank=stage, pp_degree=4)
    for batch in batches:
        with session.step():
            for m in range(microbatches):
                with session.instruction("forward", microbatch=m):
                    ...

And plan these clocks, from a measured profile::

    frontier = pfo_gpu.plan("profile.csv", microbatches=12, p2p_power=83.64)
    frontier.at("1.02x").write("plan.json")

And measure any block, without a daemon::

    with pfo_gpu.window("epoch") as epoch:
        ...
    print(epoch.time_s, epoch.energy_j)

And ask what was measured, and change what a job runs::

    node = pfo_gpu.Node()
    node.tune("llama-7b")
    node.status().job("llama-7b").windows
"""

from typing import TYPE_CHECKING

from pfo_gpu._native import Counters, Problem, __version__
from pfo_gpu.pipeline_frequency_optimizer import PipelineFrequencyOptimizer
from pfo_gpu.session import Session
from pfo_gpu.span import Span

if TYPE_CHECKING:
    from pfo_gpu.node import AsyncNode, Node, NodeError, StepEnergy
    from pfo_gpu.planner import Bound, Frontier, Plan, PlanError, Profile, plan, plan_at
    from pfo_gpu.windows import Measurement, Monitor, Window, window

__all__ = [
    "AsyncNode",
    "Bound",
    "Counters",
    "Frontier",
    "Measurement",
    "Monitor",
    "Node",
    "NodeError",
    "PipelineFrequencyOptimizer",
    "Plan",
    "PlanError",
    "Problem",
    "Profile",
    "Session",
    "Span",
    "StepEnergy",
    "Window",
    "__version__",
    "plan",
    "plan_at",
    "window",
]


def __getattr__(name: str) -> object:
    # A trainer neither plans nor asks the daemons, and does not pay for it.
    if name in ("AsyncNode", "Node", "NodeError", "StepEnergy"):
        from pfo_gpu import node

        return getattr(node, name)
    if name in ("Measurement", "Monitor", "Window", "window"):
        from pfo_gpu import windows

        return getattr(windows, name)
    if name in __all__:
        from pfo_gpu import planner

        return getattr(planner, name)
    raise AttributeError(f"module 'pfo_gpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
