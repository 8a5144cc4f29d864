"""A trainer in a notebook, whose cells are run again."""

import json

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

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
