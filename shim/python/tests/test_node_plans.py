"""What a job runs, and what it saved, from Python: plans kept, rolled back and made for stragglers."""

import json
from types import SimpleNamespace

import pytest
from one_stage import one_step, plan_file

import pfo_gpu
from pfo_gpu.node import Savings, in_force

# Two clocks, the lower of which saves.
PROFILE = b"""stage,instruction,frequency,time,energy
0,forward,1740,0.020,6.0
0,forward,1005,0.026,4.0
0,backward,1740,0.020,6.0
0,backward,1005,0.026,4.0
"""


def until_plan(session, number):
    while pfo_gpu.Node().status().job("job").ranks[0].plan != number:
        one_step(session)


def test_a_swap_is_rolled_back(node):
    agent = pfo_gpu.Node()
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        agent.swap("job", plan_file(node, 1005))
        until_plan(session, 1)
        assert agent.rollback("job").plan is None
        until_plan(session, None)
        assert agent.rollback("job").plan.label == "plan.json"


def test_a_swap_that_a_driver_does_not_carry_out_is_an_error_of_who_waits(node, training):
    plan = pfo_gpu.Plan.read(plan_file(node, 1005))
    daemons = pfo_gpu.Node(patience_s=60)
    assert daemons.swap("job", plan, wait=True).changed == 1
    assert daemons.swap("job", None, wait=True).changed == 1
    node.run("pfo-sim", "fault", "--function", "nvmlDeviceSetGpuLockedClocks", "--kind", "no-permission")
    with pytest.raises(pfo_gpu.NodeError, match="not in force on rank 0 .GPU 0.: .* does not have permission"):
        daemons.swap("job", plan, wait=True)


@pytest.mark.parametrize(
    ("runs_plan", "requested", "observed", "why"),
    [
        (True, 1005, 1005, None),
        (True, 1005, 990, None),
        (True, 1005, 1740, "rank 3 (GPU 1): it runs at 1740 MHz although pfod has locked 1005 MHz: another program"),
        (False, None, 1740, None),
        (False, 1005, 1005, "rank 3 (GPU 1): it is still locked to 1005 MHz"),
    ],
)
def test_a_lock_is_in_force_when_its_gpu_shows_it(monkeypatch, runs_plan, requested, observed, why):
    monkeypatch.setattr(in_force, "_LOOK_FOR_S", 1.0)
    rank = SimpleNamespace(rank=3, gpu_uuid="GPU-1", problem=None)
    gpu = SimpleNamespace(uuid="GPU-1", index=1, requested_mhz=requested, observed_mhz=observed, problem=None)
    plan = SimpleNamespace(suspended=None) if runs_plan else None
    status = SimpleNamespace(gpus=[gpu], jobs=[SimpleNamespace(job="job", uid=7, plan=plan, ranks=[rank])])
    found = in_force.missing(lambda: status, "job", None)
    assert found is None if why is None else found.startswith(why)


def test_a_job_over_several_nodes_is_changed_by_their_agents(node):
    daemons, asked = pfo_gpu.Node(), []
    swapped = {"number": 3, "plan": "mine", "step": 9, "nodes": 2, "changed": 2, "late": []}

    def agent(request, wait=False):
        asked.append(request)
        if request == "Status":
            return {"Status": {"jobs": [{"job": "job", "uid": 7, "fleet": {}}]}}
        return {"FleetSwapped": dict(swapped)}

    daemons._agent = agent
    for change in (lambda: daemons.swap("job", None, wait=True), lambda: daemons.straggler("job", 1.2)):
        changed = change()
        assert (changed.plan, changed.step, changed.nodes, changed.changed) == ("mine", 9, 2, 2)
    assert asked[1] == {
        "FleetSwap": {
            "job": {"job": "job", "uid": None},
            "target": "DefaultClocks",
            "at_step": None,
            "wait": True,
            "max_slowdown": None,
        }
    }
    pfo_gpu._native.agent_request_frame(json.dumps(asked[1]))
    swapped["late"] = ["b (rank 3): its driver refuses"]
    with pytest.raises(pfo_gpu.NodeError, match="job job does not run it on every node: b .rank 3.: its driver refuses"):
        daemons.rollback("job")


def test_a_plan_is_kept_for_a_job_until_it_is_forgotten(node):
    agent = pfo_gpu.Node()
    assert agent.kept_plans() == []
    kept = agent.keep("job", plan_file(node, 1005), label="mine")
    assert (kept.job, kept.label, kept.stages, kept.num_microbatches, kept.refusal) == ("job", "mine", 1, 2, None)
    assert [plan.label for plan in agent.kept_plans()] == ["mine"]
    with pfo_gpu.Session(num_microbatches=2, plan="auto"):
        assert agent.status().job("job").plan.label == "mine"
    assert agent.forget("job").label == "mine" and agent.kept_plans() == []


def test_a_kept_plan_that_does_not_fit_says_why(node):
    agent = pfo_gpu.Node()
    agent.keep("job", plan_file(node, 1005))
    with pfo_gpu.Session(num_microbatches=2, plan="auto", pp_degree=2):
        pass
    (kept,) = agent.kept_plans()
    assert kept.state == "Refused" and "stage" in kept.refusal


def test_a_job_is_slowed_down_to_a_straggler_and_comes_back(node):
    agent = pfo_gpu.Node()
    frontier = pfo_gpu.plan(pfo_gpu.Profile(PROFILE, noise="off"), microbatches=2, p2p_power=70.0)
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        with pytest.raises(pfo_gpu.NodeError, match="frontier"):
            agent.straggler("job", 1.3)
        agent.load_frontier("job", frontier)
        slowed = agent.straggler("job", 1.3)
        assert slowed.plan.predicted_energy_j == pytest.approx(16.0)
        until_plan(session, slowed.plan.number)
        assert agent.straggler("job", None).plan is None


def test_the_agent_is_told_to_answer_stragglers_by_itself(node):
    agent = pfo_gpu.Node()
    frontier = pfo_gpu.plan(pfo_gpu.Profile(PROFILE, noise="off"), microbatches=2, p2p_power=70.0)
    with pfo_gpu.Session(num_microbatches=2) as session:
        one_step(session)
        agent.load_frontier("job", frontier)
        for on in (True, False):
            agent.answer_stragglers("job", on)
            (job,) = [job for job in node.pfoctl("status")["agent"]["jobs"] if job["job"] == "job"]
            assert job["frontier"]["auto"] is on


def test_a_tune_that_nobody_made_has_no_result(node):
    with pytest.raises(pfo_gpu.NodeError, match="job job was not tuned on this node"):
        pfo_gpu.Node().tuned("job")


@pytest.mark.parametrize("by", ["job", "user", "plan", "day", "partition", "model"])
def test_a_node_without_plans_has_saved_nothing(node, by):
    savings = pfo_gpu.Node().savings(by=by, since=1)
    assert (savings.by, savings.rows, savings.total.steps, savings.total.saved_j) == (by, [], 0, None)


def test_savings_are_those_of_the_ledger_and_show_themselves_as_a_table():
    saved = {"low_j": 1.8e6, "estimate_j": 3.6e6, "high_j": 5.4e6, "shown": True}
    measured = {"steps": 10, "time_s": 7200.0, "energy_j": 40e6, "compared_j": 32.4e6, "slowdown_s": 1.0, "saved": saved}
    row = {"job": "llama", "uid": 7, "plan": None, "day_unix_s": None, "partition": None, "model": None}
    report = {"rows": [{**row, "savings": measured}], "total": {**measured, "saved": None}, "ledger_problem": None}
    savings = Savings.of_json("job", json.loads(json.dumps(report)))
    (llama,) = savings.rows
    assert (llama.name, llama.uid, llama.is_shown) == ("llama", 7, True)
    assert llama.saving == pytest.approx(0.1) and savings.total.saving is None
    shown = savings._repr_html_()
    assert "<td>llama</td><td>1</td><td>0.5</td><td>1.5</td><td>10.0%</td><td>10</td><td>2.00</td>" in shown
    assert "<td>total</td><td></td>" in shown
