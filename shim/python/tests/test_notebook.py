"""A trainer in a notebook, whose cells are run again; and a notebook that tunes."""

import json
from pathlib import Path

import pytest
from node import PROGRAMS, ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

import pfo_gpu  # noqa: E402

CELL = """
import pfo_gpu, json
session = pfo_gpu.Session(setup_timeout_s=60)
with session.step(), session.instruction("forward"):
    pass
print(json.dumps([str(session.problem), session.counters.sent]))
"""


def test_a_cell_may_be_run_again(node):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL) for _ in range(3)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    told = [json.loads(cell.outputs[0]["text"]) for cell in notebook.cells]
    assert told == [["None", 4]] * 3


TUNING = Path(__file__).parents[1] / "examples" / "tuning.ipynb"


def shown(notebook, name):
    """What a cell shows as a page."""
    (cell,) = [cell for cell in notebook.cells if cell.id == name]
    return [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def test_a_notebook_leads_from_import_to_a_tuned_plan_with_pictures(monkeypatch, tmp_path):
    packages = [ROOT / "playground", Path(pfo_gpu.__file__).parents[1]]
    for name, value in {
        "PYTHONPATH": ":".join(map(str, packages)),
        "PFO_BIN_DIR": str(PROGRAMS),
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(TUNING, as_version=4)
    (start,) = [cell for cell in notebook.cells if cell.id == "start"]
    # Far more than a step can take longer: a plan is kept, whatever else the machine does.
    start.source = start.source.replace("MAX_SLOWDOWN = 0.02", "MAX_SLOWDOWN = 0.5")
    nbclient.NotebookClient(notebook, timeout=420, kernel_name="python3").execute()
    (before,), progress_and_result = shown(notebook, "start"), shown(notebook, "tuned")
    assert "<td>playground</td>" in before and "default clocks" in before
    assert "<progress" in progress_and_result[0] and "<svg" in progress_and_result[-1]
    assert "<th style='text-align:left'>saving</th>" in progress_and_result[-1]
    assert any("<table" in page for page in shown(notebook, "shown"))
    (running,) = shown(notebook, "status")
    assert "<td>playground</td><td>2</td><td>2</td><td>default clocks</td>" not in running
    assert not list(tmp_path.iterdir()), "nothing is left of the playground"
