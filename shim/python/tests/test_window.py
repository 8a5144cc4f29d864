"""Time and energy of any block, measured by the counters of the simulated driver's library."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from node import Node

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
        print(json.dumps([outer.count, inner.count, inner.time_s > .15, outer._begun == inner._begun == []]))
        """,
    )
    assert counted == [7, 8, True, True]


def test_a_window_ends_in_another_cell_of_a_notebook_or_another_thread(node):
    counted = run(
        node,
        """
        import asyncio, json, threading, time, pfo_gpu
        epoch = pfo_gpu.window("epoch")

        async def cell(*calls):
            for call in calls:
                call()

        async def notebook():
            # As ipykernel 7 runs them: each in a task of its own.
            for calls in [(epoch.begin,), (lambda: time.sleep(.1),), (epoch.end,)]:
                await asyncio.create_task(cell(*calls))

        asyncio.run(notebook())
        measured = [epoch.count, epoch.time_s > .1, epoch.energy_j > 0]
        epoch.begin()
        thread = threading.Thread(target=epoch.end)
        thread.start(); thread.join()

        def batches():
            with epoch:
                yield 1

        running = batches()
        next(running)
        thread = threading.Thread(target=lambda: next(running, None))
        thread.start(); thread.join()
        print(json.dumps(measured + [epoch.count, epoch._begun]))
        """,
    )
    assert counted == [1, True, True, 3, []]


def test_an_end_without_a_begin_is_said_once(warnings):
    windows._reported.clear()
    windows._reported.is_first("libnvidia-ml.so.1")
    measured = Window("lost")
    measured.end()
    measured.end()
    said = [warning for warning in warnings() if "lost" in warning]
    assert len(said) == 1 and "was ended without having begun" in said[0] and measured.count == 0


def test_a_child_that_is_forked_while_threads_measure_measures_too(node):
    measured = run(
        node,
        """
        import json, os, threading, pfo_gpu
        from pfo_gpu.windows import Window
        shared, over = Window("w"), threading.Event()

        def measure():
            while not over.is_set():
                with shared, Window("own"):
                    pass

        threads = [threading.Thread(target=measure) for _ in range(4)]
        for thread in threads: thread.start()
        ended = 0
        for _ in range(100):
            child = os.fork()
            if not child:
                with shared, Window("child") as own:
                    pass
                os._exit(0 if own.problem is None else 1)
            ended += os.waitpid(child, 0)[1] == 0
        over.set()
        for thread in threads: thread.join()
        print(json.dumps(ended))
        """,
    )
    assert measured == 100


@pytest.mark.parametrize("fault", ["once", "thrice", "fell"])
def test_a_counter_that_fails_now_and_then_costs_one_window_at_most(node, fault):
    measured = run(
        node,
        f"""
        import json, pfo_gpu
        from pfo_gpu import nvml
        from pfo_gpu.windows import Monitor, Window
        read, left = nvml.Nvml.energy_mj, {{"once": 1, "thrice": 3, "fell": 0}}[{fault!r}]
        window, other, monitor = Window("w"), Window("o"), Monitor([0])
        monitor.begin_window("m")
        window.begin()

        def failing(library, handle):
            global left
            left -= 1
            if left >= 0:
                raise nvml.NvmlError("busy")
            return 1 if {fault!r} == "fell" else read(library, handle)

        nvml.Nvml.energy_mj = failing
        window._gpus._read_mj = monitor._counters._read_mj = lambda handle: failing(nvml.nvml(), handle)
        window.end()
        left = {{"thrice": 3}}.get({fault!r}, 0)
        first = monitor.end_window("m").gpu_energy
        nvml.Nvml.energy_mj = read
        window._gpus._read_mj = monitor._counters._read_mj = nvml.nvml().energy_mj
        with other:
            monitor.begin_window("m")
        again = monitor.end_window("m").gpu_energy
        print(json.dumps([window.count, window.energy_j is None, window.problem, first == {{}}, other.problem, list(again)]))
        """,
    )
    count, is_unknown, problem, is_empty, other, again = measured
    assert count == 1 and other is None and again == [0]
    assert is_unknown == is_empty == (fault != "once")
    assert {"once": problem is None, "thrice": problem == "busy", "fell": " fell; was the driver" in str(problem)}[fault]


@pytest.mark.parametrize(
    ("variables", "arguments", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "", [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "2,2,0"}, "", [2, 0]),
        ({"PFO_GPU": "uuid of 1"}, "", [1]),
        ({"PFO_GPU": "cuda:1"}, "", [1]),
        ({"PFO_GPU": "3"}, "", [3]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, "gpus=[1, 1]", [1]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "", [1]),
    ],
)
def test_the_gpus_are_those_of_the_process(node, variables, arguments, gpus):
    by_ordinal = node.cuda_gpus
    variables = {name: by_ordinal[int(value[-1])] if "uuid" in value else value for name, value in variables.items()}
    program = f"import json, pfo_gpu; print(json.dumps(list(pfo_gpu.window('w', {arguments}).energy_by_gpu_j)))"
    assert run(node, program, **variables) == [by_ordinal[gpu] for gpu in gpus]


def test_a_number_is_the_same_gpu_for_a_window_a_monitor_and_a_session(node):
    program = """
        import json, pfo_gpu
        from pfo_gpu.windows import Monitor
        session = pfo_gpu.Session(gpu=2)
        window, monitor = pfo_gpu.window(gpus=[2]), Monitor(gpu_indices=[2])
        print(json.dumps([str(session.gpu), *window.energy_by_gpu_j, *monitor._uuids]))
        """
    assert run(node, program) == [node.cuda_gpus[2]] * 3


def test_among_several_models_a_number_means_nothing_and_the_window_says_what_does(tmp_path, without_launcher):
    node = Node(tmp_path, "1xA40,1xA100")
    program = "import json, pfo_gpu; w = pfo_gpu.window(gpus=[0]); print(json.dumps([w.problem, len(w.energy_by_gpu_j)]))"
    problem, _ = run(node, program)
    assert "CUDA puts the fastest first" in problem and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in problem
    assert run(node, program, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [None, 1]
    assert run(node, program.replace("gpus=[0]", "")) == [None, 2]


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
