"""Make plans: from a measured profile to the time-energy frontier and its plans.

::

    import pfo_gpu

    frontier = pfo_gpu.plan("profile.csv", microbatches=12, schedule="1f1b", p2p_power=83.64)
    plan = frontier.at("1.02x")
    print(plan.time_s, plan.energy_j, frontier.bound().energy_j(plan.time_s))
    plan.write("plan.json")

This is the planner of ``pfoctl plan``, with the same options and files. It requires no daemon and
no GPU.
"""

from pfo_gpu._native import Bound, PlanError
from pfo_gpu.planner.frontier import Frontier
from pfo_gpu.planner.planning import plan, plan_at
from pfo_gpu.planner.plans import Plan
from pfo_gpu.planner.profile import Profile

__all__ = ["Bound", "Frontier", "Plan", "PlanError", "Profile", "plan", "plan_at"]
