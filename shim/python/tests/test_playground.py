"""The playground: a simulated node, a trainer on it, and nothing left of either."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from node import PROGRAMS, ROOT, until

PACKAGE = ROOT / "playground"
sys.path.insert(0, str(PACKAGE))

from pfo_gpu_playground import work  # noqa: E402

TRAINER = """
import os, sys, time
import pfo_gpu

assert sys.argv[1:] == ["--lr", "0.1"] and os.environ["CUDA_VISIBLE_DEVICES"] == ""
rank, stages = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
session = pfo_gpu.Session(pp_rank=rank, pp_degree=stages)
assert session.gpu == os.environ["PFO_GPU"], session.problem
while True:
    with session.step():
        for name in ("forward", "backward"):
            with session.instruction(name):
                time.sleep(0.001 * (rank + 1))
    print("a step of rank", rank, flush=True)
"""


def environment(directory, **variables):
    return {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        "PYTHONUNBUFFERED": "1",
        "PFO_BIN_DIR": str(PROGRAMS),
        "TMPDIR": str(directory),
        **variables,
    }


def start(directory, *arguments):
    command = [sys.executable, "-m", "pfo_gpu", "playground", *arguments]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(directory), **piped)


def said_until(playground, words):
    """What it has said when it says this."""
    said = []
    for line in playground.stdout:
        said.append(line)
        if words in line:
            break
    return "".join(said)


def processes_of(directory):
    """The processes that belong to something in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory).encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "a b"
    directory.mkdir()
    return directory


@pytest.fixture
def trainer(directory):
    script = directory / "my trainer.py"
    script.write_text(TRAINER)
    return script


def test_a_trainer_of_ones_own_trains_until_ctrl_c(directory, trainer):
    playground = start(directory, "run", "--ranks", "2", "--no-tune", str(trainer), "--lr", "0.1")
    said = said_until(playground, "status")
    assert "2 simulated A40s" in said and "a step of rank" in said and "export PFO_SOCKET='" in said, (
        said + playground.stderr.read()
    )
    playground.send_signal(signal.SIGINT)
    rest, errors = playground.communicate(timeout=60)
    assert playground.returncode == 130, errors
    assert errors.strip() == "playground: interrupted; everything that it started has ended"
    until("nothing is left running", lambda: not processes_of(directory))
    assert [path.name for path in directory.iterdir()] == [trainer.name]


def test_nothing_is_left_running_when_the_playground_is_killed(directory, trainer):
    playground = start(directory, "run", "--ranks", "2", "--no-tune", str(trainer), "--lr", "0.1")
    said_until(playground, "status")
    assert processes_of(directory)
    playground.kill()
    playground.communicate(timeout=60)
    until("nothing is left running", lambda: not processes_of(directory))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("run", "none.py"), "none.py is no file; give the trainer's script"),
        (("run", "--ranks", "0", __file__), "--ranks 0: a simulated node has 1 to 64 GPUs"),
        (("--gpu", "A1000"), "A1000"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(directory, arguments, words):
    playground = start(directory, *arguments)
    _, errors = playground.communicate(timeout=60)
    assert playground.returncode == 1
    assert errors.startswith("playground: ") and words in errors and "Traceback" not in errors, errors


def test_a_trainer_that_fails_is_quoted(directory):
    script = directory / "failing.py"
    script.write_text("raise SystemExit('the data set is gone')")
    playground = start(directory, "run", "--ranks", "1", str(script))
    _, errors = playground.communicate(timeout=60)
    assert playground.returncode == 1
    assert "the trainer has ended" in errors and "the data set is gone" in errors
    assert "Every rank has to report its steps to pfo" in errors and "Traceback" not in errors


def test_without_its_package_the_playground_says_what_to_install(directory):
    command = [sys.executable, "-m", "pfo_gpu", "playground"]
    ended = subprocess.run(command, env=environment(directory, PYTHONPATH=""), capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install --no-index --find-links target/wheels pfo-gpu-playground" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_heaviest_instruction_of_all_ranks_decides_how_much_longer_all_take(tmp_path):
    ranks = [work.MeasuredWork(tmp_path, rank, 2) for rank in range(2)]

    def run(rank, seconds):
        for _ in range(4):
            ranks[rank].begin_step()
            ranks[rank].took("forward", 0, seconds)
            ranks[rank].took("backward", 0, 2 * seconds)

    both = [threading.Thread(target=run, args=(rank, 0.001 * (rank + 1))) for rank in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    # 4 ms become 60 ms.
    assert [ranks[rank].seconds("forward", 0) for rank in range(2)] == pytest.approx([0.015, 0.03])
    assert ranks[1].seconds("backward", 0) == pytest.approx(0.06)
    assert ranks[0].seconds("backward_weight", 0) == pytest.approx(0.004)


@pytest.mark.parametrize("name", ["load", "p2p", "collective", "optimizer_step"])
def test_what_no_clock_makes_faster_takes_no_time_of_a_gpu(tmp_path, name):
    alone = work.MeasuredWork(tmp_path, 0, 1)
    for _ in range(4):
        alone.begin_step()
        alone.took("forward", 0, 0.001)
        alone.took(name, 0, 7.0)
    assert alone.seconds("forward", 0) == pytest.approx(0.06), "the heaviest that a clock makes faster"
    assert alone.seconds(name, 0) is None
    assert work.GivenWork({"forward": 1.0}).seconds(name, 0) is None


def test_work_that_is_given_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PFO_PLAYGROUND_WORK", json.dumps([{"forward": 1.0, "backward": 2.0}]))
    given = work.of_environment(3, 4)
    given.begin_step()
    assert (given.seconds("forward", 0), given.seconds("backward_weight", 1)) == (1.0, 2.0)
