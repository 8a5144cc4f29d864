"""What EnvPipe, Perseus and pfo save of GPT-3 175B, from the profiles that were published with Perseus.

    python published_tables.py [DIRECTORY]

The directory has ``gpt3-175b-a100.csv`` and ``gpt3-175b-a40.csv``, made from the artifact of "Perseus:
Reducing Energy Bloat in Large Model Training" (SOSP 2024); else it is ``profiles`` in ``PFO_DATA_DIR`` or
in ``../shared/data`` beside the source tree.

Every plan is replayed over the profile, whatever its planner claims. EnvPipe is what Perseus' evaluation
computes for it, and savings are compared with all GPUs at their highest clocks. The first table is Perseus'
on intrinsic energy bloat. The second is that on pipelines that wait for a straggler, whose wait counts, with
the plan of least energy of lowtime, Perseus' planner.
"""

import os
import sys
import warnings
from pathlib import Path

import pfo_gpu

MICROBATCHES = (12, 24, 48, 96)
STRAGGLERS = (1.1, 1.2, 1.3, 1.5)

# For each GPU its P2P-blocking power in watts, and what Perseus' paper has for these numbers of microbatches.
GPUS = {"a100": (83.64, (15.2, 14.2, 13.6, 13.3)), "a40": (70.38, (11.8, 10.2, 9.3, 8.9))}


def main() -> None:
    directory = profiles(sys.argv[1:])
    if not (directory / "gpt3-175b-a100.csv").exists():
        sys.exit(f"skipped: {directory} has no gpt3-175b-a100.csv; give the directory that has it")
    warnings.simplefilter("ignore")  # The tables of the A40 have steps, which are real.
    print("Energy saved in the time that the highest clocks take, %")
    print(f"{'GPU':6}{'M':>4}{'EnvPipe':>9}{'Perseus, published':>20}{'pfo':>7}{'possible':>10}")
    for gpu, (p2p_power_w, published) in GPUS.items():
        profile = pfo_gpu.Profile(directory / f"gpt3-175b-{gpu}.csv", noise="off")
        for microbatches, of_perseus in zip(MICROBATCHES, published):
            frontier = pfo_gpu.plan(profile, microbatches=microbatches, p2p_power=p2p_power_w)
            fastest = frontier.plans_of("all-max")[0]
            least_j = frontier.bound().energy_j(fastest.time_s)
            envpipe, ours = frontier.plans_of("envpipe-offline")[0], frontier.at(f"{fastest.time_s}s")
            saved = [100 * (1 - joules / fastest.energy_j) for joules in (envpipe.energy_j, ours.energy_j, least_j)]
            print(f"{gpu:6}{microbatches:4}{saved[0]:9.1f}{of_perseus:20.1f}{saved[1]:7.1f}{saved[2]:10.1f}")
    print("\nEnergy saved by a pipeline that waits for a straggler, 12 microbatches, %")
    print(f"{'GPU':6}{'straggler':>10}{'lowtime':>9}{'pfo':>7}{'possible':>10}")
    for gpu, (p2p_power_w, _) in GPUS.items():
        profile = pfo_gpu.Profile(directory / f"gpt3-175b-{gpu}.csv", noise="off")
        frontier = pfo_gpu.plan(profile, microbatches=12, p2p_power=p2p_power_w)
        fastest, lowtime = frontier.plans_of("all-max")[0], frontier.plans_of("lowtime-perseus")
        lowtime = pfo_gpu.Frontier.of_plans(lowtime, profile, p2p_power=p2p_power_w)
        for factor in STRAGGLERS:
            until_s = factor * fastest.time_s
            plans = lowtime.at(f"{until_s}s"), frontier.at(f"{until_s}s")
            rivals = [frontier.energy_until(plan, until_s) for plan in plans]
            of_fastest_j = frontier.energy_until(fastest, until_s)
            rivals.append(frontier.bound().energy_j(until_s))
            saved = [100 * (1 - joules / of_fastest_j) for joules in rivals]
            print(f"{gpu:6}{factor:9}x{saved[0]:9.1f}{saved[1]:7.1f}{saved[2]:10.1f}")


def profiles(arguments: "list[str]") -> Path:
    if arguments:
        return Path(arguments[0])
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    return Path(os.environ.get("PFO_DATA_DIR", beside)) / "profiles"


if __name__ == "__main__":
    main()
