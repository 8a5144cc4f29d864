"""The plan that a session names: its job begins with it, or says once why not."""

import json

import pytest

import pfo_gpu


@pytest.fixture
def plan(tmp_path):
    """Writes a plan of one stage for some microbatches."""

    def write(microbatches):
        names = ["forward"] * microbatches + ["backward"] * microbatches
        instructions = [
            {"instruction": name, "microbatch": n % microbatches, "frequency_mhz": 600 + 15 * n}
            for n, name in enumerate(names)
        ]
        plan = {
            "format": "pfo-plan/1",
            "gpu": "A40",
            "schedule": "gpipe",
            "num_stages": 1,
            "num_microbatches": microbatches,
            "stages": [{"stage": 0, "instructions": instructions}],
        }
        path = tmp_path / f"{microbatches}.json"
        path.write_text(json.dumps(plan))
        return path

    return write


def test_a_session_begins_with_the_plan_that_it_names(node, plan, warnings):
    with pfo_gpu.Session(num_microbatches=2, plan=plan(2)) as session:
        assert session.plan_problem is None
        session.step_begin()
        node.until_clock(0, 600)
    assert warnings() == []


def test_a_plan_that_does_not_fit_is_one_warning_and_no_error(node, plan, warnings, monkeypatch):
    monkeypatch.setenv("PFO_PLAN", str(plan(2)))
    with pfo_gpu.Session(num_microbatches=4) as session:
        assert session.problem is None
        assert "the plan has 2 microbatches in a step, the job 4" in str(session.plan_problem)
        session.step_begin()
    (warning,) = warnings()
    assert warning.startswith("training without the plan: the plan has 2 microbatches")


def test_a_job_for_which_nothing_is_kept_begins_at_default_clocks(node, warnings):
    with pfo_gpu.Session(plan="auto") as session:
        assert session.plan_problem is None
    assert warnings() == []
