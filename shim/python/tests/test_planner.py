"""The planner in Python: what it makes is what pfoctl makes, and what it refuses it explains."""

import copy
import io
import json
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from csv import DictReader
from pathlib import Path

import pytest
from node import PROGRAMS, ROOT

import pfo_gpu

P2P_POWER_W = 83.64
CLOCKS = range(1005, 1411, 45)


def csv(stages=4, scale=1.0):
    """A profile whose last stage is the heaviest."""
    rows = ["stage,instruction,frequency,time,energy"]
    for stage in range(stages):
        for instruction, work_s in (("forward", 0.05), ("backward", 0.1)):
            work_s *= scale * (1.0 + 0.2 * (stage + 1 == stages) + 0.01 * stage)
            for mhz in CLOCKS:
                time_s = work_s * (0.3 + 0.7 * 1410 / mhz)
                watts = 120 + 280 * (mhz / 1410) ** 2.5
                rows.append(f"{stage},{instruction},{mhz},{time_s:.7f},{watts * time_s:.6f}")
    return "\n".join(rows) + "\n"


def plan_for_long(progress):
    """Makes plans for a step that takes minutes."""
    pfo_gpu.plan(csv(24).encode(), microbatches=192, p2p_power=P2P_POWER_W, plans=4000, progress=progress)


@pytest.fixture
def profile(tmp_path):
    """A file with a profile."""
    path = tmp_path / "profile.csv"
    path.write_text(csv())
    return path


@pytest.fixture(scope="module")
def frontier():
    return pfo_gpu.plan(csv().encode(), microbatches=6, p2p_power=P2P_POWER_W, plans=60)


@pytest.fixture
def pfoctl(tmp_path):
    """Runs pfoctl in the test's directory."""

    def run(*arguments):
        command = [PROGRAMS / "pfoctl", *map(str, arguments)]
        finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        ({"schedule": "gpipe", "transfer_ms": 2.5}, ["--schedule=gpipe", "--transfer-ms=2.5"]),
        ({"schedule": "interleaved-1f1b", "chunks": 3}, ["--schedule=interleaved-1f1b", "--chunks=3"]),
        ({"schedule": "envpipe", "memory_limit": 2}, ["--schedule=envpipe", "--memory-limit=2"]),
        ({"switch_latency_ms": 15, "set_call_ms": 3}, ["--switch-latency-ms=15", "--set-call-ms=3"]),
        ({"clock_per": "kind", "site_power": 200.0}, ["--clock-per=kind", "--site-power=200"]),
        ({"p2p_power": {210: 50.0, 1410: 84.0}}, ["--wait-power=210:50,1410:84"]),
    ],
)
def test_the_plans_are_those_of_pfoctl(profile, pfoctl, tmp_path, settings, options):
    given = {"p2p_power": P2P_POWER_W, **settings}
    ours = pfo_gpu.plan(profile, microbatches=8, gpu="A100", plans=40, **given)
    if "--wait-power" not in "".join(options):
        options = [*options, f"--p2p-power={P2P_POWER_W}"]
    frontier = "--microbatches=8", "--gpu=A100", "--plans=40", "-o", "frontier"
    pfoctl("plan", "optimize", profile, *frontier, *options)
    assert ours.to_bytes() == (tmp_path / "frontier").read_bytes()
    for deadline in ("fastest", "1.02x", "min-energy", "1.5x"):
        for format in ("pfo", "lowtime", "zeus"):
            theirs = pfoctl("plan", "export", "frontier", "--deadline", deadline, "--format", format)
            if format != "pfo" and "--wait-power" in "".join(options):
                # pfoctl has the profile, and says what the plan takes without clocks for its waits.
                theirs = re.sub("# predicted iteration energy: .* J\n", "", theirs)
            assert ours.at(deadline).to_text(format) == theirs
    bound = json.loads(pfoctl("plan", "bound", "frontier", "--deadline", "1.05x", "--json"))
    (row,) = bound
    assert ours.bound().energy_j(row["time_s"]) == row["least_energy_j"]
    assert ours.energy_until(ours.at("1.05x"), row["time_s"]) == row["energy_j"]


def test_a_frontier_file_is_read_and_written_by_both(profile, pfoctl, tmp_path, frontier):
    frontier.write(tmp_path / "ours")
    shown = json.loads(pfoctl("plan", "show", "ours", "--json"))
    assert [list(cost.values())[:2] for cost in shown["points"]] == [list(p) for p in frontier.points]
    beyond = [list(cost.values())[:2] for cost in shown["beyond_min_energy"]]
    assert beyond == [list(point) for point in frontier.beyond_min_energy]
    assert pfo_gpu.Frontier.read(tmp_path / "ours").to_bytes() == frontier.to_bytes()


@pytest.mark.parametrize("format", ["pfo", "lowtime", "zeus"])
def test_a_plan_is_read_back_from_every_format(profile, tmp_path, frontier, format):
    plan, measured = frontier.at("1.02x"), pfo_gpu.Profile(profile)
    plan.write(tmp_path / "plan", format)
    read = pfo_gpu.Plan.read(tmp_path / "plan", measured)
    assert read.clocks() == plan.clocks()
    assert read.replay(measured, P2P_POWER_W) == pytest.approx((plan.time_s, plan.energy_j))
    assert (read.time_s is None) == (format != "pfo")


def test_an_order_in_a_file_is_planned_for(profile, tmp_path):
    def units(stage):
        return [{"instruction": name, "microbatch": m} for m in range(2) for name in ("forward", "backward")]

    order = {"format": "pfo-order/1", "stages": [units(stage) for stage in range(4)]}
    path = tmp_path / "order.json"
    path.write_text(json.dumps(order))
    made = pfo_gpu.plan(profile, order=path, p2p_power=P2P_POWER_W, plans=10)
    assert (made.schedule, made.num_microbatches) == ("custom", 2)
    with pytest.raises(pfo_gpu.PlanError, match="order.json: microbatches is 3, but the order has 2"):
        pfo_gpu.plan(profile, order=path, microbatches=3, p2p_power=P2P_POWER_W)
    for ignored, value in (("schedule", "zb-v"), ("schedule", "1f1b"), ("fixed", "load")):
        with pytest.raises(pfo_gpu.PlanError, match=f'{ignored} is "{value}", but the order .* leave {ignored} out'):
            pfo_gpu.plan(profile, order=path, p2p_power=P2P_POWER_W, **{ignored: value})


def test_an_order_that_pytorch_wrote_is_planned_for(profile, tmp_path):
    rows = [",".join(f"{stage}{kind}{m}" for kind in "FB" for m in range(2)) for stage in range(4)]
    path = tmp_path / "schedule.csv"
    path.write_text("\n".join(rows) + "\n")
    made = pfo_gpu.plan(profile, order=path, p2p_power=P2P_POWER_W, plans=10)
    assert (made.schedule, made.num_microbatches) == ("custom", 2)


def test_one_plan_without_a_frontier_is_about_that_of_one(profile, frontier):
    for deadline in ("1.02x", "min-energy", 1.1 * frontier.fastest_s):
        plan = pfo_gpu.plan_at(profile, deadline, microbatches=6, p2p_power=P2P_POWER_W)
        assert plan.energy_j == pytest.approx(frontier.at(deadline).energy_j, rel=2e-3)
        assert plan.time_s <= frontier.seconds(deadline) * 1.002
    with pytest.raises(pfo_gpu.PlanError, match="no plan takes 0.01 s or less"):
        pfo_gpu.plan_at(profile, "10ms", microbatches=6, p2p_power=P2P_POWER_W)
    with pytest.raises(pfo_gpu.PlanError, match='did you mean "1f1b"'):
        pfo_gpu.plan_at(profile, "1.02x", microbatches=6, p2p_power=P2P_POWER_W, schedule="1F1B")


def test_rows_and_columns_of_python_are_a_profile(profile):
    measured = pfo_gpu.Profile(profile)
    rows = list(DictReader(io.StringIO(measured.to_csv())))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert pfo_gpu.Profile(rows, noise="off") == pfo_gpu.Profile(columns, noise="off") == measured
    assert pfo_gpu.Profile([{**row, "stage": f"{row['stage']}.0"} for row in rows], noise="off") == measured
    with pytest.raises(TypeError, match="a mapping of columns or a sequence of mappings, not int"):
        pfo_gpu.Profile(7)
    with pytest.raises(ValueError, match="equally long"):
        pfo_gpu.Profile({**columns, "time": columns["time"][:-1]})


def test_a_plan_with_confidence_takes_less_time(frontier):
    plain, sure = frontier.at("1.05x"), frontier.at("1.05x", confidence="95%")
    assert 0.98 * plain.time_s < sure.time_s < plain.time_s
    assert frontier.at("1.05x", confidence=0.95) == sure != plain
    with pytest.raises(pfo_gpu.PlanError, match='the confidence is .*, must be a share of steps'):
        frontier.at("1.05x", confidence="often")
    with pytest.raises(pfo_gpu.PlanError, match="not even the fastest plan is within"):
        frontier.at("fastest", confidence="95%")
    with pytest.raises(ValueError, match="not polished"):
        frontier.at("1.05x", confidence="95%", polish_s=1)


def test_a_plan_of_lists_is_read_over_the_file_of_its_profile(profile, tmp_path, frontier):
    plan = frontier.at("1.02x")
    plan.write(tmp_path / "plan.py", "lowtime")
    assert pfo_gpu.Plan.read(tmp_path / "plan.py", profile).clocks() == plan.clocks()


def test_a_bound_takes_deadlines_and_shows_its_ends(frontier):
    bound = frontier.bound()
    assert bound("1.02x") == bound.energy_j("1.02x") == bound.energy_j(frontier.seconds("1.02x"))
    assert "J in" in repr(bound)
    assert bound(bound.fastest_s) >= bound(bound.cheapest_s)
    for early in ("0.9x", 0.9 * frontier.fastest_s, -5):
        with pytest.raises(pfo_gpu.PlanError, match="no plan takes .* or less; the fastest takes"):
            bound(early)
    for never in (float("inf"), float("nan")):
        with pytest.raises(pfo_gpu.PlanError, match="the iteration time is .*, must be a number of seconds"):
            bound(never)
    with pytest.raises(TypeError):
        bound.energy_j(None)


def test_the_plans_of_others_make_a_frontier(profile, tmp_path, frontier):
    measured = pfo_gpu.Profile(profile)
    plans = [frontier.at(deadline) for deadline in ("1.05x", "fastest", "1.02x")]
    of_three = pfo_gpu.Frontier.of_plans(plans, measured, p2p_power=P2P_POWER_W)
    assert [plan.time_s for plan in of_three] == sorted(plan.time_s for plan in plans)
    assert of_three[-1].energy_j < of_three[0].energy_j
    with pytest.raises(IndexError, match="no plan 3; it has 3"):
        of_three[3]


def test_no_plan_is_below_the_bound_or_late(frontier):
    bound = frontier.bound()
    for percent in range(0, 40, 3):
        time_s = frontier.fastest_s * (1 + percent / 100)
        plan = frontier.at(f"{time_s}s")
        assert plan.time_s <= time_s
        assert frontier.energy_until(plan, time_s) >= bound.energy_j(time_s) * (1 - 1e-9)
    (from_s, to_s), (from_j, to_j) = frontier.interval(plan)
    assert from_s < plan.time_s < to_s and from_j < plan.energy_j < to_j


def test_a_measured_step_adds_what_is_in_no_instruction(frontier):
    plan = frontier.at("1.05x")
    fastest_s = frontier.plans_of("all-max")[0].time_s
    of_instructions, of_step = frontier.interval(plan), frontier.interval(plan, measured_step_s=1.1 * fastest_s)
    for before, after in zip(of_instructions, of_step):
        assert before[0] < after[0] and before[1] < after[1]
    middle_s = sum(of_step[0]) / 2 - sum(of_instructions[0]) / 2
    assert middle_s == pytest.approx(0.1 * fastest_s)
    with pytest.raises(pfo_gpu.PlanError, match="50 % of the step is in no instruction"):
        frontier.interval(plan, measured_step_s=2 * fastest_s)
    with pytest.raises(pfo_gpu.PlanError, match="shorter than its instructions"):
        frontier.interval(plan, measured_step_s=0.5 * fastest_s)


@pytest.mark.parametrize("step_s", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_a_measured_step_that_is_no_time_is_refused_with_its_value(frontier, step_s):
    with pytest.raises(pfo_gpu.PlanError, match="the measured step is .*, must be seconds above 0") as refused:
        frontier.interval(frontier[0], measured_step_s=step_s)
    assert len(str(refused.value)) < 150


def test_a_frontier_says_how_many_of_its_plans_are_for_stragglers(frontier):
    others = len(frontier) - len(frontier.points)
    assert others > 0 and f"of {len(frontier.points)} plans, " in repr(frontier)
    assert f"(least energy), and {others} for stragglers" in repr(frontier)
    curve = frontier.points
    for faster, slower in zip(curve, curve[1:]):
        assert faster[0] < slower[0] and faster[1] > slower[1]


def test_changes_of_clocks_that_hold_up_a_stage_are_planned_for(profile):
    free, held_up = (
        pfo_gpu.plan(profile, microbatches=6, p2p_power=P2P_POWER_W, plans=20, held_up_ms=ms) for ms in (0, 20)
    )
    assert json.loads(held_up[-1].to_text())["held_up_s"] == 0.02
    assert held_up.at("1.05x").energy_j > free.at("1.05x").energy_j


def test_other_systems_plan_for_the_same_profile(pfoctl, tmp_path, profile, frontier):
    compared = pfoctl("plan", "compare", profile, "--microbatches=6", f"--p2p-power={P2P_POWER_W}", "--json")
    rows = {row["policy"]: row for row in json.loads(compared)}
    for policy in ("all-max", "envpipe-offline", "zeus-global"):
        plan = frontier.plans_of(policy)[0]
        assert plan.energy_j == pytest.approx(rows[policy]["iteration_energy_j"])
    lowtime = pfo_gpu.Frontier.of_plans(
        frontier.plans_of("lowtime-perseus"), pfo_gpu.Profile(profile), p2p_power=P2P_POWER_W
    )
    assert len(lowtime) > 1 and lowtime.at("1.05x").energy_j > frontier.at("1.05x").energy_j
    with pytest.raises(pfo_gpu.PlanError, match='unknown policy "eco" .known: all-max, .*lowtime-zeus'):
        frontier.plans_of("eco")


def test_plans_of_one_clock_a_stage_are_not_polished(profile):
    frontier = pfo_gpu.plan(profile, microbatches=4, p2p_power=83.64, clock_per="stage", plans=20)
    with pytest.raises(pfo_gpu.PlanError, match="a clock per stage"):
        frontier.at("1.03x", polish_s=1)


def test_polishing_never_makes_a_plan_worse(frontier):
    plan, polished = frontier.at("1.03x"), frontier.at("1.03x", polish_s=0.3)
    assert polished.energy_j <= plan.energy_j
    assert polished.time_s <= 1.03 * frontier.fastest_s


def test_copies_and_workers_have_the_same_plans(frontier):
    plan = frontier.at("1.01x")
    of_worker = pickle.loads(pickle.dumps(frontier)).at("1.01x")
    for same in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), of_worker):
        assert (same.clocks(), same.schedule) == (plan.clocks(), plan.schedule)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda original: pickle.loads(pickle.dumps(original))])
def test_copies_of_profiles_and_bounds_are_equal_and_warn_no_more(frontier, copied, recwarn):
    measured = pfo_gpu.Profile(csv().replace("0,forward,1410,0.0500000", "0,forward,1410,0.0700000").encode())
    recwarn.clear()
    assert copied(measured).to_csv() == measured.to_csv() and not recwarn
    bound, same = frontier.bound(), copied(frontier.bound())
    for time_s in (frontier.fastest_s, 1.1 * frontier.fastest_s, frontier.cheapest_s):
        assert same.energy_j(time_s) == bound.energy_j(time_s)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"microbatches": 0}, "the number of microbatches is 0, must be between 1 and 65536"),
        ({}, "how many microbatches a step has; give microbatches"),
        ({"microbatches": 4, "schedule": "2f2b"}, 'unknown schedule "2f2b" (known: 1f1b'),
        ({"microbatches": 4, "fixed": ["lod"]}, "lod"),
        ({"microbatches": 4, "p2p_power": -1.0}, "the P2P-blocking power is -1 W, must be"),
        ({"microbatches": 4, "p2p_power": {210: float("nan")}}, "NaN W at 210 MHz"),
        ({"microbatches": 4, "p2p_power": 1e6}, "no GPU draws 1000000 W while it waits"),
        ({"microbatches": 4, "transfer_ms": -1.0}, "-0.001"),
        ({"microbatches": 4, "plans": 1}, "the number of plans is 1"),
        ({"microbatches": 4, "site_power": -5.0}, "the site power is -5 W"),
        ({"microbatches": 4, "clock_per": "gpu"}, '"gpu"'),
        ({"microbatches": -1}, "microbatches is -1; it must not be negative"),
        ({"microbatches": 4, "chunks": 2**16}, "chunks is 65536; it must be less than 65536"),
        ({"microbatches": 4, "plans": -1}, "plans is -1; it must not"),
        ({"microbatches": 4, "memory_limit": [-1] * 4}, "memory_limit is -1; it must not"),
        ({"microbatches": 4, "fixed": "lod"}, '"lod"'),
        ({"microbatches": 4, "chunks": 9}, "chunks changes nothing in schedule 1f1b: it is for interleaved-1f1b"),
        ({"microbatches": 4, "memory_limit": 2}, "memory_limit changes nothing in schedule 1f1b: it is for envpipe"),
        ({"microbatches": 4, "schedule": "zb-v", "extra_warm_up": True}, "extra_warm_up changes nothing in schedule"),
    ],
)
def test_an_argument_without_sense_is_refused_with_its_value(profile, arguments, said):
    with pytest.raises(pfo_gpu.PlanError) as refused:
        pfo_gpu.plan(profile, **{"p2p_power": P2P_POWER_W, **arguments})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"microbatches": 4.5}, "microbatches is 4.5; it must be a whole number"),
        ({"p2p_power": None}, "p2p_power is None; it must be a number of watts, watts by clock ({MHz: watts})"),
        ({"p2p_power": "70"}, "p2p_power is '70'; it must be"),
    ],
)
def test_an_argument_of_another_type_is_refused_with_its_name(profile, arguments, said):
    with pytest.raises(TypeError) as refused:
        pfo_gpu.plan(profile, **{"microbatches": 4, "p2p_power": P2P_POWER_W, **arguments})
    assert said in str(refused.value)


def test_the_power_of_a_replay_is_refused_with_its_value(profile, frontier):
    with pytest.raises(TypeError, match="p2p_power is {}; it must be a number of watts, or a list"):
        frontier[0].replay(pfo_gpu.Profile(profile), {})
    for power_w, said in ((-5, "-5 W"), (float("nan"), "NaN W")):
        with pytest.raises(pfo_gpu.PlanError, match=f"the P2P-blocking power is {said}, must be"):
            frontier[0].replay(pfo_gpu.Profile(profile), power_w)


def test_a_plan_whose_sums_round_is_not_below_the_bound():
    rows = "0,forward,1410,0.06,20\n0,forward,1005,0.078,16.3\n0,backward,1410,0.1,40\n0,backward,1005,0.13,32.6\n"
    profile = f"stage,instruction,frequency,time,energy\n{rows}".encode()
    frontier = pfo_gpu.plan(profile, microbatches=3, p2p_power=P2P_POWER_W)
    fastest = frontier.at("fastest")
    assert frontier.bound().energy_j(fastest.time_s) <= fastest.energy_j * (1 + 1e-9)


def test_one_name_is_as_good_as_a_list_of_one(profile):
    with_load = csv() + "".join(f"{stage},load,1410,0.01,1.0\n" for stage in range(4))
    of_name, of_list = (
        pfo_gpu.plan(with_load.encode(), microbatches=4, p2p_power=P2P_POWER_W, plans=10, fixed=fixed)
        for fixed in ("load", ["load"])
    )
    assert of_name.to_bytes() == of_list.to_bytes()


class Integer:
    """An integer that is not Python's, as those of NumPy are."""

    def __init__(self, number):
        self._number = number

    def __index__(self):
        return self._number


def test_integers_of_others_count(profile):
    def made(of):
        settings = {"microbatches": of(4), "memory_limit": of(1), "plans": of(10), "schedule": "envpipe"}
        return pfo_gpu.plan(profile, p2p_power=P2P_POWER_W, **settings)

    assert made(Integer).to_bytes() == made(int).to_bytes()


def test_a_slice_of_a_frontier_is_a_list_of_its_plans(frontier):
    assert [plan.time_s for plan in frontier[1:3]] == [frontier[1].time_s, frontier[2].time_s]
    assert len(frontier[::-1]) == len(frontier) and frontier[:0] == []
    assert frontier[Integer(1)].time_s == frontier[1].time_s


def test_a_bad_profile_is_named_with_its_line(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(csv().replace("0,forward,1050", "0,forwards,1050"))
    with pytest.raises(pfo_gpu.PlanError, match=r"bad\.csv: profile, line 3.*forwards"):
        pfo_gpu.Profile(path)
    with pytest.raises(pfo_gpu.PlanError, match="^profile, line 3"):
        pfo_gpu.Profile(path.read_bytes())
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pfo_gpu.plan(tmp_path / "nowhere.csv", microbatches=1, p2p_power=1.0)
    with pytest.raises(TypeError, match="a path, bytes, a DataFrame, a mapping of columns or a sequence of mappings, not int"):
        pfo_gpu.Profile(7)


def test_a_file_that_is_no_plan_is_named(tmp_path, frontier):
    path = tmp_path / "plan.py"
    path.write_text(frontier.at("fastest").to_text("lowtime"))
    with pytest.raises(pfo_gpu.PlanError, match=r"plan\.py: .*give the profile"):
        pfo_gpu.Plan.read(path)
    with pytest.raises(pfo_gpu.PlanError, match=r"plan\.py: "):
        pfo_gpu.Frontier.read(path)
    with pytest.raises(pfo_gpu.PlanError, match='format="yaml"; it is one of "pfo"'):
        frontier.at("fastest").write(path, "yaml")
    with pytest.raises(FileNotFoundError, match="no/plan.json"):
        frontier.at("fastest").write(tmp_path / "no" / "plan.json")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.py"]


def test_a_deadline_that_no_plan_keeps_or_that_is_unclear_is_refused(frontier):
    with pytest.raises(pfo_gpu.PlanError, match="the fastest takes"):
        frontier.at("0.1s")
    with pytest.raises(pfo_gpu.PlanError, match="min-energy"):
        frontier.at("soon")
    assert not frontier.fastest_s <= 1.9 <= frontier.cheapest_s
    with pytest.raises(pfo_gpu.PlanError, match="write 1.9s or 1.9x"):
        frontier.at(1.9)
    assert frontier.seconds(f"{frontier.fastest_s:.4g}") == frontier.fastest_s


def test_what_looks_wrong_in_a_profile_is_a_warning_at_the_trainers_own_line():
    lines = csv().splitlines()
    stage, instruction, mhz, time_s, energy_j = lines[5].split(",")
    lines[5] = f"{stage},{instruction},{mhz},{float(time_s) * 3},{float(energy_j) * 3}"
    profile = "\n".join(lines).encode()
    with pytest.warns(UserWarning, match="^profile: ") as warned:
        pfo_gpu.Profile(profile, noise="off")
        pfo_gpu.plan(profile, microbatches=4, p2p_power=P2P_POWER_W)
    assert {warning.filename for warning in warned} == {__file__}


def test_a_smoothed_profile_is_read_back_as_it_is():
    profile = pfo_gpu.Profile(csv().encode())
    assert pfo_gpu.Profile(profile.to_csv().encode(), noise="off").to_csv() == profile.to_csv()


def test_ctrl_c_ends_a_plan_that_takes_long(tmp_path):
    script = tmp_path / "plan.py"
    script.write_text(
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom test_planner import plan_for_long\n"
        "plan_for_long(lambda done: print(done, flush=True))\n"
    )
    planning = subprocess.Popen(
        [sys.executable, script, Path(__file__).parent],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert float(planning.stdout.readline()) < 1
    planning.send_signal(signal.SIGINT)
    _, error = planning.communicate()
    assert error.rstrip().endswith("KeyboardInterrupt") and "panicked" not in error
    assert planning.returncode == -signal.SIGINT


def test_what_progress_raises_ends_the_plan_and_other_threads_run_meanwhile():
    seen, turns = [], 0

    def progress(done):
        seen.append(done)
        if len(seen) == 5:
            raise RuntimeError("enough")

    def count():
        nonlocal turns
        while not seen or len(seen) < 5:
            turns += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    other.start()
    with pytest.raises(RuntimeError, match="enough"):
        plan_for_long(progress)
    other.join()
    assert len(seen) == 5 and all(0 <= done <= 1 for done in seen)
    assert turns > 100


def test_a_trainer_that_imports_pfo_does_not_load_the_planner():
    loaded = "[name for name in sys.modules if name.startswith(('pfo_gpu.planner', 'pandas', 'matplotlib'))]"
    script = f"import sys, pfo_gpu; print({loaded}); pfo_gpu.plan; print('pfo_gpu.planner' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["[]", "True"]


def test_tables_are_data_frames(profile, frontier):
    pandas = pytest.importorskip("pandas")
    table = frontier.to_pandas()
    assert list(table) == ["time_s", "energy_j", "slowdown", "saving", "bound_j"]
    assert len(table) == len(frontier) and table["slowdown"].iloc[0] == 0
    assert (table["energy_j"] >= table["bound_j"] * (1 - 1e-9)).all()
    clocks = frontier.at("1.02x").to_pandas()
    assert len(clocks) == 4 * 2 * 6 and set(clocks["frequency"]) <= set(CLOCKS)
    made = pfo_gpu.plan(pandas.read_csv(profile), microbatches=6, p2p_power=P2P_POWER_W, plans=60)
    assert made.to_bytes() == frontier.to_bytes()
    tables = pfo_gpu.Profile(profile, noise="off").to_pandas(), pandas.read_csv(profile)
    measured, written = (set(table.itertuples(index=False, name=None)) for table in tables)
    assert measured == written


def test_a_picture_has_the_plans_the_bound_and_the_tail(frontier):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = frontier.plot(label="ours")
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["ours", "for stragglers", "lower bound"]
    plans, _, bound = axes.get_lines()
    assert list(zip(*plans.get_data())) == frontier.points
    assert bound.get_xdata()[0] == frontier.fastest_s and bound.get_ydata()[0] < plans.get_ydata()[0]


@pytest.mark.parametrize(("package", "use"), [("pandas", "to_pandas"), ("matplotlib", "plot")])
def test_without_a_package_the_error_says_what_to_install(monkeypatch, frontier, package, use):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.pyplot", raising=False)
    with pytest.raises(ImportError, match=f"Frontier.{use} requires {package}; install it with"):
        getattr(frontier, use)()


def test_plans_profiles_and_frontiers_compare_by_value(frontier, profile):
    plan = frontier.at("1.02x")
    for one, other in ((plan, frontier.at("1.05x")), (frontier, frontier.of_plans([plan], pfo_gpu.Profile(profile), p2p_power=P2P_POWER_W))):
        copied = pickle.loads(pickle.dumps(one))
        assert copied == one and hash(copied) == hash(one) and one != other and one != 3
    assert pfo_gpu.Profile(profile) == pickle.loads(pickle.dumps(pfo_gpu.Profile(profile)))


def test_a_notebook_shows_plans_and_frontiers(frontier):
    assert "<polyline" in frontier._repr_html_() and "iteration time" in frontier._repr_html_()
    assert frontier.at("1.02x")._repr_html_().count("<tr>") == 1 + frontier.num_stages


def test_a_plan_of_zeus_is_read_with_the_file_of_its_profile_and_clocks_that_it_leaves(frontier, profile, tmp_path):
    plan, file = frontier.at("1.02x"), tmp_path / "zeus.py"
    plan.write(file, "zeus")
    read = pfo_gpu.Plan.read(file, profile=profile)
    assert read.clocks() == plan.clocks()
    name, mhz = plan._native.instructions()[1][1], plan.clocks()[0][1]
    text = file.read_text().replace(f"('{name}', {mhz})", f"('{name}', 0)", 1)
    file.write_text(text)
    left = pfo_gpu.Plan.read(file, profile=profile).clocks()
    assert left[1:] == plan.clocks()[1:] and 0 not in left[0]
    with pytest.raises(pfo_gpu.PlanError, match='profile="profile.csv"'):
        pfo_gpu.Plan.read(file)


def test_what_is_refused_is_called_as_it_is_imported():
    assert (pfo_gpu.PlanError.__module__, pfo_gpu.NodeError.__module__) == ("pfo_gpu", "pfo_gpu")


def test_payloads_of_kareus_go_with_a_plan_and_come_back_as_they_were(tmp_path):
    header = "stage,instruction,frequency,attention_configs,mlp_configs,time,energy\n"
    rows = "0,forward,1410,a,b,0.05,20\n0,backward,1410,c,d,0.1,41\n"
    plan = pfo_gpu.plan((header + rows).encode(), microbatches=1, p2p_power=50).at("fastest")
    assert plan.payloads() == [["a,b", "c,d"]]
    scheds = "[\n[(('forward', '1-2-3-4', 'none-none-16-1024'), ('backward', '', 'x'))],\n]\n"
    path = tmp_path / "scheds_pipeline_00007.py"
    path.write_text(scheds + "# Iteration 7 total cost: 1.5\n")
    other = plan.with_payloads(path)
    assert other.payloads() == [["1-2-3-4,none-none-16-1024", ",x"]] and other != plan
    assert pickle.loads(pickle.dumps(other)).to_text("payloads") == scheds
    with pytest.raises(pfo_gpu.PlanError, match="scheds_pipeline_00007.py.*line 2"):
        path.write_text("[\n[7],\n]\n")
        plan.with_payloads(path)
