"""mypy and pyright accept a trainer with PyTorch's own types, and find what is wrong in it."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = Path(__file__).with_name("typed_trainer.py")

CHECKERS = {
    "mypy": ["--strict", "--follow-imports=silent", "--allow-untyped-calls"],
    # Else it looks for packages where the `python` of the path is.
    "pyright": ["--level", "error", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_typed_trainer_is_accepted(checker, tmp_path):
    pytest.importorskip(checker)
    command = [sys.executable, "-m", checker, *CHECKERS[checker], str(TRAINER)]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
