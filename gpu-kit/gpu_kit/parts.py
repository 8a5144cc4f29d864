"""What is measured, part by part. A part returns what goes into the facts under its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

from gpu_kit import identity, reads
from gpu_kit.nvml import (
    AVERAGE, ENERGY, INSTANT, MEMORY_CLOCK, MEMORY_TEMPERATURE, POWER, POWERS, REASONS, SM_CLOCK, STATE,
    SW_POWER_CAP, TEMPERATURE, UTILIZATION, Nvml,
)  # fmt: skip
from gpu_kit.watch import Helper, for_seconds, quantiles, sampled, watch

_STATE = [SM_CLOCK, MEMORY_CLOCK, REASONS, TEMPERATURE]
_TABLE = [
    SM_CLOCK, MEMORY_CLOCK, INSTANT, AVERAGE, POWER, ENERGY, TEMPERATURE, MEMORY_TEMPERATURE, REASONS, STATE,
    UTILIZATION, SW_POWER_CAP,
]  # fmt: skip
# How often pfod looks at a counter of an unknown rhythm at most, in a second.
_PFO_LOOKS = 40


class Kit:
    """The GPU, its load, how much of the full time each part takes, and when all must be over."""

    def __init__(self, nvml: Nvml, library: str, gpu: int, load: Helper, share: float, ends: float) -> None:
        self.nvml, self.library, self.gpu, self.load = nvml, library, gpu, load
        self.share, self.ends = share, ends
        self.driver = nvml.text("nvmlSystemGetDriverVersion", of_system=True) or ""
        self.densest = ""
        self.kinds: list[str] = []

    def seconds(self, seconds: float) -> float:
        """A time of the full run, in this one."""
        return max(0.3, seconds * self.share)

    def left_s(self) -> float:
        """What is left of the time for all."""
        return self.ends - time.monotonic()

    def watching(self, order: list[object], readings: list[Any], period_s: float = 0.001) -> dict[str, Any]:
        """Has the load do something, and watches until it is done and a little longer."""
        pending = self.load.order(*order)
        seen = watch(self.nvml, readings, period_s, pending.came)
        return {**seen, "load": self._relative(pending.wait(), seen["began_ns"])}

    def kept_power(self, began_ns: int) -> Any:
        """The driver's own samples of power, with the times of this kit: theirs are of the wall clock."""
        kept = self.nvml.samples(0)
        if isinstance(kept, str):
            return kept
        ahead_ns = time.time_ns() - time.monotonic_ns()
        return [[at * 1000 - ahead_ns - began_ns, value] for at, value in kept["values"]]

    @staticmethod
    def _relative(load: dict[str, Any], began_ns: int) -> dict[str, Any]:
        load = dict(load)
        for name in ("began_ns", "ended_ns"):
            if name in load:
                load[name] -= began_ns
        if "spans" in load:
            load["spans"] = [[*span[:-2], span[-2] - began_ns, span[-1] - began_ns] for span in load["spans"]]
        if "at_ns" in load:
            load["at_ns"] = [at - began_ns for at in load["at_ns"]]
        return load


def identify(kit: Kit) -> Any:
    return identity.identity(kit.nvml)


def fields_idle(kit: Kit) -> Any:
    return identity.fields(kit.nvml)


def throttling_before(kit: Kit) -> Any:
    return identity.throttling(kit.nvml, kit.driver)


def reads_idle(kit: Kit) -> Any:
    return reads.read_times(kit.nvml, kit.share, lambda: False)


def reads_spaced(kit: Kit) -> Any:
    """The energy counter with pauses, and what else takes longer beside reads of it."""
    return {
        "energy_us": reads.spaced(kit.nvml, ENERGY, 0.037, max(5, round(100 * kit.share))),
        "beside_energy": reads.beside(kit.nvml, ENERGY, [POWER, SM_CLOCK, INSTANT], kit.seconds(2)),
    }


def idle_quiet(kit: Kit) -> Any:
    """What reading itself does to a GPU without work: seldom, cheap reads often, and the counter ten times a second."""
    cheap, all_of_it = [SM_CLOCK, INSTANT, POWER], [SM_CLOCK, INSTANT, POWER, ENERGY]
    time.sleep(kit.seconds(4))
    return {
        "seldom": sampled(kit.nvml, cheap, kit.seconds(2), for_seconds(kit.seconds(6))),
        "cheap_often": sampled(kit.nvml, cheap, 0.02, for_seconds(kit.seconds(3))),
        "counter_at_10_hz": sampled(kit.nvml, all_of_it, 0.1, for_seconds(kit.seconds(4))),
    }


def idle_without_context(kit: Kit) -> Any:
    return watch(kit.nvml, [ENERGY, *POWERS, *_STATE], 0.001, for_seconds(max(2.5, kit.seconds(5))))


def context(kit: Kit) -> Any:
    """The time until there is a context, and what it does to an idle GPU."""
    began = time.monotonic()
    kit.load.order("context")
    answer = kit.load.order("kinds").wait(90)
    kit.densest, kit.kinds = answer["densest"], list(answer["unit_ms"])
    return {"kinds": answer, "took_s": time.monotonic() - began}


def idle_with_context(kit: Kit) -> Any:
    time.sleep(kit.seconds(2))
    return watch(kit.nvml, [ENERGY, *POWERS, *_STATE], 0.001, for_seconds(kit.seconds(5)))


def step(kit: Kit) -> Any:
    """From rest to dense work and back: how each reading follows."""
    readings = [ENERGY, *POWERS[:3], *_STATE]
    on = kit.watching(["run", kit.densest, kit.seconds(4), 1], readings)
    kept = kit.kept_power(on["began_ns"])
    off = watch(kit.nvml, readings, 0.001, for_seconds(kit.seconds(4)))
    return {"on": _short(on), "kept_power": kept, "off": off}


def _short(seen: dict[str, Any]) -> dict[str, Any]:
    # The first pieces show how fast the clock follows a power limit; of all there is a distribution.
    load = dict(seen["load"])
    load["first_pieces"] = [
        [at, round(took, 4)] for at, took in zip(load.pop("at_ns"), load["took_ms"]) if at < 800_000_000
    ]
    load["took_ms"] = quantiles(load["took_ms"])
    return {**seen, "load": load}


def waves(kit: Kit) -> Any:
    """Work and rest in turn: whether counter and readings see all of it, whenever it comes."""
    # A copy stays below the power limit, and draws the same power however long it is.
    steady = "copy"
    plan = [
        (steady, 20, 101, 9), (steady, 50, 101, 5), (steady, 10, 26, 3), (steady, 150, 400, 4),
        (kit.densest, 20, 101, 5), (kit.densest, 1000, 2000, 6),
    ]  # fmt: skip
    found = []
    for kind, on_ms, period_ms, seconds in plan:
        count = max(2, round(kit.seconds(seconds) * 1e3 / period_ms))
        seen = kit.watching(["wave", kind, on_ms, period_ms, count], [ENERGY, INSTANT, AVERAGE, POWER])
        kept = kit.kept_power(seen["began_ns"])
        found.append({"kind": kind, "on_ms": on_ms, "period_ms": period_ms, **seen, "kept_power": kept})
        time.sleep(kit.seconds(0.5))
    return found


def kinds(kit: Kit) -> Any:
    """Power, clock and reasons of each kind of load, and of waiting as a collective does."""
    found = {}
    for kind in kit.kinds:
        pending = kit.load.order("run", kind, kit.seconds(3), 5)
        seen = sampled(kit.nvml, _TABLE, 0.05, pending.came)
        load = pending.wait()
        found[kind] = {**seen, "took_ms": quantiles(load["took_ms"]), "amount": load["amount"]}
        time.sleep(kit.seconds(0.5))
    return found


def reads_loaded(kit: Kit) -> Any:
    """The time of each read while the GPU is at work."""
    pending = kit.load.order("run", kit.densest, kit.seconds(7), 5)
    found = reads.read_times(kit.nvml, kit.share, pending.came)
    pending.wait()
    pending = kit.load.order("run", kit.densest, kit.seconds(4), 5)
    found["energy_spaced_us"] = reads.spaced(kit.nvml, ENERGY, 0.037, max(5, round(90 * kit.share)))
    pending.wait()
    return found


def fields_loaded(kit: Kit) -> Any:
    """All fields again, at work."""
    pending = kit.load.order("run", kit.densest, kit.seconds(3), 5)
    time.sleep(kit.seconds(1))
    found = identity.fields(kit.nvml)
    pending.wait()
    return found


def observer(kit: Kit) -> Any:
    """Whether reading delays kernels and launches: nobody reads, somebody does as pfod, or without a pause."""
    ways: list[tuple[str, str, float]] = [("none", "", 0), ("pfo", "all", _PFO_LOOKS), ("flat_out", "energy", 0)]
    found: list[dict[str, Any]] = []
    for _ in range(2):
        for name, what, rate in ways:
            for kind, piece_ms in (("spin", 0.5), (kit.densest, 3)):
                if kit.left_s() < 10:
                    return found
                seen = _observed(kit, what, rate, kind, piece_ms)
                found.append({"reader": name, "kind": kind, "piece_ms": piece_ms, **seen})
    return found


def _observed(kit: Kit, what: str, rate: float, kind: str, piece_ms: float) -> dict[str, Any]:
    reader = Helper("reader", kit.library, str(kit.gpu), str(rate), what) if what else None
    if reader:
        reader.answer()
    times = kit.load.order("times", kind, piece_ms, kit.seconds(1)).wait()
    read = None
    if reader:
        read = reader.order("").wait()
        reader.close()
    return {
        "took_ms": quantiles(times["took_ms"]),
        "mean_ms": sum(times["took_ms"]) / max(1, len(times["took_ms"])),
        "empty_launch_us": quantiles(times["empty_us"]),
        "read": read,
    }


def instructions(kit: Kit) -> Any:
    """Instructions in random order, for their energy by the counter and by the integral of power."""
    count = max(30, round(400 * kit.share))
    return kit.watching(["row", count, 7], [ENERGY, INSTANT, POWER, SM_CLOCK])


def minute(kit: Kit) -> Any:
    """Dense work for a minute, as a table, and how the GPU comes to rest."""
    seconds = max(1.0, min(kit.seconds(60), kit.left_s() - 20))
    pending = kit.load.order("run", kit.densest, seconds, 20)
    at_work = sampled(kit.nvml, _TABLE, 0.1, pending.came)
    load = pending.wait()
    at_rest = sampled(kit.nvml, _TABLE, 0.1, for_seconds(kit.seconds(6)))
    pieces = [round(ms, 4) for ms in load["took_ms"]]
    return {"work": at_work, "rest": at_rest, "piece_took_ms": pieces, "amount": load["amount"]}


def throttling_after(kit: Kit) -> Any:
    return identity.throttling(kit.nvml, kit.driver)


def kept_samples(kit: Kit) -> Any:
    return identity.kept_samples(kit.nvml)


def shim(kit: Kit) -> Any:
    """The shim's times beside the framework's, if both are here."""
    site = Path(__file__).resolve().parent.parent / "site"
    if not site.is_dir():
        return {"left_out": "the folder site, with the wheel, is not here"}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(kit.gpu), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return _program([sys.executable, "-m", "gpu_kit.shim_timing", str(site)], 40, environment)


def selftest(kit: Kit) -> Any:
    """`pfoctl selftest`, if the program is here. Without --set it only reads."""
    program = Path(__file__).resolve().parent.parent / "bin" / "pfoctl"
    if not program.is_file():
        return {"left_out": "bin/pfoctl is not here"}
    command = [str(program), "selftest", "--json", "--nvml", kit.library, "--gpu", str(kit.gpu)]
    return _program(command, 30, dict(os.environ))


def _program(command: list[str], within_s: float, environment: dict[str, str]) -> Any:
    ran = subprocess.run(
        command,
        cwd=Path(__file__).resolve().parent.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    try:
        return json.loads(_nameless(ran.stdout))
    except ValueError:
        output = (ran.stdout + ran.stderr)[-2000:]
        return {"left_out": f"ended with {ran.returncode}: {_nameless(output)}"}


def _nameless(text: str) -> str:
    text = re.sub(r"(GPU|MIG)-[0-9a-fA-F-]{8,}", r"\1-…", text)
    return re.sub(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]", "…", text)


def context_closed(kit: Kit) -> Any:
    """The GPU after its last process has ended."""
    kit.load.close()
    return sampled(kit.nvml, _TABLE, 0.1, for_seconds(kit.seconds(6)))


# In this order; the minute heats the GPU, and so comes late.
PARTS: list[tuple[str, Callable[[Kit], Any]]] = [
    ("identity", identify),
    ("fields_idle", fields_idle),
    ("throttling_before", throttling_before),
    ("reads_idle", reads_idle),
    ("idle_quiet", idle_quiet),
    ("idle_without_context", idle_without_context),
    ("reads_spaced", reads_spaced),
    ("context", context),
    ("idle_with_context", idle_with_context),
    ("step", step),
    ("waves", waves),
    ("kinds", kinds),
    ("reads_loaded", reads_loaded),
    ("observer", observer),
    ("instructions", instructions),
    ("shim", shim),
    ("selftest", selftest),
    ("minute", minute),
    ("throttling_after", throttling_after),
    ("kept_samples", kept_samples),
    ("fields_loaded", fields_loaded),
    ("context_closed", context_closed),
]
