"""Time and energy of any block, measured by the counters of the simulated driver's library."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from pfo_gpu import windows
from pfo_gpu.windows import Window


def run(node, program, **variables):
    """What a program printed as JSON that finds the node's driver as every program does."""
    environment = {**os.environ, **node._environment, "LD_LIBRARY_PATH": str(node.directory), **variables}
    environment.pop("PFO_GPU", None)
    environment.update(variables)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_a_window_has_time_and_energy_of_each_gpu(node):
    measured = run(
        node,
        """
        import json, time, pfo_gpu
        with pfo_gpu.window("epoch") as epoch:
            time.sleep(1)
        print(json.dumps([epoch.time_s, epoch.energy_j, epoch.energy_by_gpu_j, epoch.power_w, epoch.count, epoch.problem]))
        """,
    )
    time_s, energy_j, by_gpu, power_w, count, problem = measured
    assert 1 <= time_s < 30 and count == 1 and problem is None
    assert list(by_gpu) == node.gpus and all(energy > 0 for energy in by_gpu.values())
    assert energy_j == pytest.approx(sum(by_gpu.values())) and power_w == pytest.approx(energy_j / time_s)


def test_windows_nest_and_add_up_in_threads_and_tasks(node):
    counted = run(
        node,
        """
        import asyncio, json, threading, pfo_gpu
        outer, inner = pfo_gpu.window("outer"), pfo_gpu.window("inner")

        @inner
        def work():
            with outer:
                pass

        @inner
        async def wait():
            await asyncio.sleep(.05)

        async def several():
            async with outer:
                await asyncio.gather(*(wait() for _ in range(4)))

        with outer:
            with outer:
                work()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        asyncio.run(several())
        outer.end()
        print(json.dumps([outer.count, inner.count, inner.time_s > .15, outer._begun == inner._begun == {}]))
        """,
    )
    assert counted == [7, 8, True, True]


@pytest.mark.parametrize(
    ("variables", "arguments", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "", [2, 0]),
        ({"PFO_GPU": "uuid of 1"}, "", [1]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, "gpus=[1]", [1]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "", [1]),
    ],
)
def test_the_gpus_are_those_of_the_process(node, variables, arguments, gpus):
    variables = {name: node.gpus[int(value[-1])] if "uuid" in value else value for name, value in variables.items()}
    program = f"import json, pfo_gpu; print(json.dumps(list(pfo_gpu.window('w', {arguments}).energy_by_gpu_j)))"
    assert run(node, program, **variables) == [node.gpus[gpu] for gpu in gpus]


def test_a_session_says_which_gpu_is_meant(node):
    program = "import json, pfo_gpu; s = pfo_gpu.Session(gpu=%r); print(json.dumps(list(pfo_gpu.window().energy_by_gpu_j)))"
    assert run(node, program % node.gpus[2]) == [node.gpus[2]]


def test_without_a_driver_a_window_has_its_time_and_one_warning(warnings):
    windows._reported.clear()
    with Window("a") as measured, Window("b"):
        pass
    assert measured.time_s > 0 and measured.energy_j is None and "libnvidia-ml.so.1" in measured.problem
    assert len(warnings()) == 1 and "windows measure time, and no energy" in warnings()[0]


def test_a_gpu_that_is_none_is_said(node):
    program = "import json, pfo_gpu; print(json.dumps([pfo_gpu.window(gpus=[gpu]).problem for gpu in (7, 'GPU-x')]))"
    beyond, unknown = run(node, program)
    assert beyond == "gpus has 7; CUDA shows this process 4 GPUs, counted from 0"
    assert unknown == "GPU-x is no GPU of this node"


def test_a_program_written_for_zeus_monitor_has_its_windows(node):
    measured = run(
        node,
        """
        import json, threading, time
        from pfo_gpu import Monitor as ZeusMonitor
        monitor = ZeusMonitor(gpu_indices=[1, 3])
        monitor.begin_window("epoch")
        monitor.begin_window("step")
        time.sleep(.5)
        step = monitor.end_window("step")
        ended = []
        thread = threading.Thread(target=lambda: ended.append(monitor.end_window("epoch")))
        thread.start(); thread.join()
        monitor.begin_window("again")
        cancelled = monitor.end_window("again", cancel=True)
        refused = []
        for call in (lambda: monitor.end_window("again"), lambda: ZeusMonitor(gpu_indices=[4])):
            try: call()
            except ValueError as error: refused.append(str(error))
        print(json.dumps([step.time, step.total_energy, step.gpu_energy, ended[0].time, cancelled.total_energy, refused]))
        """,
    )
    step_s, step_j, by_gpu, epoch_s, cancelled_j, refused = measured
    assert .5 <= step_s <= epoch_s and set(by_gpu) == {"1", "3"} and step_j == pytest.approx(sum(by_gpu.values()))
    assert step_j > 0 and cancelled_j == 0 and len(refused) == 2


def test_what_a_window_cannot_measure_is_refused_when_it_is_made():
    wanted = "gpus: expected a list of UUIDs, PCI bus ids or places among the GPUs that CUDA shows this process"
    for gpus, error, why in [
        ("GPU-1", TypeError, f"{wanted}, not 'GPU-1'; write ['GPU-1'] for one of them"),
        (5, TypeError, f"{wanted}, not 5; write [5] for one of them"),
        ([None], TypeError, f"{wanted}, not one with None"),
        ([], ValueError, f"{wanted}, not an empty one; without gpus, the window counts those of this process"),
    ]:
        with pytest.raises(error) as refused:
            Window("epoch", gpus=gpus)
        assert str(refused.value) == why


def test_a_generator_is_no_block_that_a_window_can_measure():
    def batches():
        yield 1

    async def later():
        yield 1

    for function in (batches, later):
        with pytest.raises(TypeError, match="its call returns before its work begins; use `with` inside it"):
            Window("epoch")(function)
