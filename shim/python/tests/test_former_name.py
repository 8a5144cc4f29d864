"""`import pfo`, as it was before the package was called pfo_gpu."""

import subprocess
import sys

import pytest

import pfo_gpu


def python(script: str, **options) -> str:
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120, **options
    )
    return run.stdout + run.stderr


def test_the_former_name_warns_once_and_loads_nothing_twice():
    said = python(
        "import pfo, pfo\n"
        "import pfo.integrations.pipelining, pfo_gpu.integrations.pipelining\n"
        "from pfo.session import Session\n"
        "import pfo_gpu.session\n"
        "assert pfo is pfo_gpu and pfo.integrations.pipelining is pfo_gpu.integrations.pipelining\n"
        "assert Session is pfo_gpu.Session\n"
        "assert pfo_gpu.session.__spec__.name == 'pfo_gpu.session', pfo_gpu.session.__spec__\n"
    )
    assert said.count("FutureWarning: pfo is now called pfo_gpu") == 1, said


def test_a_module_that_does_not_exist_is_not_found_under_the_former_name():
    said = python(
        "import pfo\n"
        "try: import pfo.nothing\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    assert "No module named 'pfo_gpu.nothing'" in said


def test_the_new_name_does_not_load_the_former_one():
    assert python("import sys, pfo_gpu; print('pfo' in sys.modules)") == "False\n"


@pytest.mark.parametrize("place", ["insert(0, ", "append("])
def test_a_strangers_package_called_pfo_is_the_one_that_is_imported(tmp_path, place):
    (tmp_path / "pfo").mkdir()
    (tmp_path / "pfo" / "__init__.py").write_text("investments = 3")
    (tmp_path / "pfo" / "stocks.py").write_text("price = 7")
    said = python(
        f"import sys; sys.path.{place}{str(tmp_path)!r})\n"
        "import pfo, pfo.stocks\n"
        "print(pfo.investments, pfo.stocks.price)\n"
        "import pfo_gpu; print(pfo_gpu.Session is not None)\n"
    )
    assert said == "3 7\nTrue\n"


def test_a_strangers_package_in_the_same_folder_is_preferred(tmp_path):
    former = (pfo_gpu.__file__.rsplit("/", 2)[0]) + "/pfo.py"
    (tmp_path / "pfo.py").write_bytes(open(former, "rb").read())
    (tmp_path / "pfo").mkdir()
    (tmp_path / "pfo" / "__init__.py").write_text("investments = 3")
    assert python("import pfo; print(pfo.investments)", cwd=tmp_path) == "3\n"
