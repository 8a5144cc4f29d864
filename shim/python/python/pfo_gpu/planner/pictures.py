"""The picture of a frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from pfo_gpu.planner.optional import imported

if TYPE_CHECKING:
    from pfo_gpu.planner.frontier import Frontier

# Points of a bound's curve.
_BOUND_POINTS = 200


def frontier(frontier: Frontier, axes: Any, label: Optional[str]) -> Any:
    """Draws plans by time and energy, the bound below them, and the plans for stragglers; returns
    the axes."""
    if axes is None:
        axes = imported("matplotlib.pyplot", "Frontier.plot").gca()
    times_s, energies_j = zip(*frontier.points)
    (line,) = axes.plot(times_s, energies_j, ".-", label=label or "plans")
    beyond = frontier.beyond_min_energy
    if beyond:
        axes.plot(*zip(*beyond), ":", color=line.get_color(), label="for stragglers")
    bound = frontier.bound()
    last_s = beyond[-1][0] if beyond else times_s[-1]
    step_s = (last_s - times_s[0]) / (_BOUND_POINTS - 1)
    of_bound = [times_s[0] + step_s * point for point in range(_BOUND_POINTS)]
    axes.plot(of_bound, [bound.energy_j(s) for s in of_bound], "k-", lw=0.8, label="lower bound")
    axes.set_xlabel("iteration time (s)")
    axes.set_ylabel("energy of a step (J)")
    axes.legend()
    return axes
