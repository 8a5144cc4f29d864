"""Measures a GPU and writes `facts.json` and `report.md`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from gpu_kit import laws, parts, report
from gpu_kit.nvml import Nvml
from gpu_kit.watch import Helper

_LONGEST_S = 225.0


def main() -> int:
    """Exit codes: 0 measured, 1 some part failed, 2 there is no GPU to measure."""
    options = _options()
    began = time.monotonic()
    try:
        nvml = Nvml(options.library, options.gpu)
    except (OSError, RuntimeError) as error:
        print(f"gpu-kit: {error}", file=sys.stderr)
        return 2
    if options.sim:
        load = Helper("simulated_load", str(options.gpu), options.sim)
    else:
        load = Helper("load", str(options.gpu), *(["--without-torch"] if options.without_torch else []))
    facts: dict[str, Any] = {"format": "pfo-gpu-facts/1", "share_of_full_time": options.share}
    kit = parts.Kit(nvml, options.library, options.gpu, load, options.share, began + _LONGEST_S)
    try:
        facts["torch"] = load.answer()["torch"]
        failed = _measure(kit, facts, options.out, options.only)
    finally:
        load.close()
    facts["lasted_s"] = round(time.monotonic() - began, 1)
    _conclude(facts, options.out)
    print(f"gpu-kit: {options.out / 'facts.json'} and report.md, after {facts['lasted_s']} s")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("facts"), metavar="FOLDER", help="[default: facts]")
    parser.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="the GPU, by NVML's index [default: 0]")
    parser.add_argument("--library", default="libnvidia-ml.so.1", metavar="FILE", help="NVML")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the time that each part takes")
    parser.add_argument("--without-torch", action="store_true", help="only this kit's own kernels")
    parser.add_argument("--sim", metavar="PROGRAM", help="pfo-sim-trainer, for a simulated GPU")
    parser.add_argument("--only", nargs="*", metavar="PART", help="these parts alone")
    return parser.parse_args()


def _measure(kit: parts.Kit, facts: dict[str, Any], out: Path, only: Any) -> bool:
    failed = False
    facts["parts_took_s"] = took = {}
    facts["parts"] = found = {}
    for name, part in parts.PARTS:
        if only and name not in only and name not in ("identity", "context"):
            continue
        began = time.monotonic()
        if kit.left_s() < 3:
            found[name] = {"left_out": "no time is left"}
            continue
        print(f"gpu-kit: {name}", flush=True)
        try:
            found[name] = part(kit)
        except Exception as error:  # One part that fails stops no other.
            failed = True
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        took[name] = round(time.monotonic() - began, 2)
        _write(facts, out)
    return failed


def _write(facts: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "facts.json").write_text(json.dumps(facts, separators=(",", ":")) + "\n")


def _conclude(facts: dict[str, Any], out: Path) -> None:
    try:
        facts["laws"] = laws.of(facts["parts"])
        text = report.of(facts)
    except Exception as error:  # The raw facts are worth more than what is made of them.
        traceback.print_exc()
        text = f"The report failed: {error}\n"
    _write(facts, out)
    (out / "report.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
