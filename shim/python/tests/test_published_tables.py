"""The notebook that reproduces published tables, run as a reader runs it."""

import json
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
for needed in ("ipykernel", "matplotlib", "pandas"):
    pytest.importorskip(needed)

NOTEBOOK = Path(__file__).parents[1] / "examples" / "published_tables.ipynb"
DATA = Path(os.environ.get("PFO_DATA_DIR", Path(__file__).parents[4] / "shared" / "data"))

TABLES = "print(*(table.to_json(orient='values') for table in (envpipe, intrinsic, stragglers)), sep='\\n')"


def run(monkeypatch, profiles, more=()):
    """The cells of the notebook, and these, after they ran."""
    monkeypatch.setenv("PFO_PROFILES", str(profiles))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(cell) for cell in more]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return notebook.cells


def test_the_published_tables_are_reproduced_and_ours_saves_more(monkeypatch):
    if not (DATA / "profiles" / "gpt3-175b-a100.csv").exists():
        pytest.skip(f"{DATA} has no published profiles")
    cells = run(monkeypatch, DATA / "profiles", [TABLES])
    envpipe, intrinsic, stragglers = map(json.loads, cells[-1].outputs[0]["text"].splitlines())
    assert (len(envpipe), len(intrinsic), len(stragglers)) == (8, 8, 8)
    for *_, time_off, energy_off in envpipe:
        assert abs(time_off) < 0.1 and abs(energy_off) < 0.12
    for of_envpipe, perseus, ours, possible in intrinsic:
        assert of_envpipe < perseus < ours <= possible
    for lowtime, ours, possible in stragglers:
        assert lowtime < ours <= possible
    shown = cells[-2].outputs[0]["data"]
    assert "straggler" in shown["text/html"]


def test_without_the_published_profiles_the_notebook_says_what_is_missing(monkeypatch, tmp_path):
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="has no gpt3-175b-a100.csv") as told:
        run(monkeypatch, tmp_path)
    assert str(tmp_path) in str(told.value) and "PFO_PROFILES" in str(told.value)
