"""``python -m pfo_gpu``: programs of the package."""

from __future__ import annotations

import argparse
import importlib
import sys

from pfo_gpu import doctor, observe

_PLAYGROUND = "Tries pfo on a simulated node, without a GPU (requires the wheel of pfo-gpu-playground)."


def main() -> int:
    """Runs the program that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m pfo_gpu", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    programs.add_parser("doctor", help=doctor.__doc__, description=doctor.__doc__)
    playground = programs.add_parser("playground", help=_PLAYGROUND, add_help=False, prefix_chars="\0")
    playground.add_argument("arguments", nargs="*")
    programs.add_parser("observe", help=observe.__doc__, add_help=False)
    if sys.argv[1:2] == ["observe"]:
        # Every word is pfoctl's or the command's; argparse would take a `--` out.
        return observe.main(sys.argv[2:])
    options = parser.parse_args()
    return doctor.main() if options.program == "doctor" else _play(options.arguments)


def _play(arguments: list[str]) -> int:
    try:
        command = importlib.import_module("pfo_gpu_playground.command")
    except ModuleNotFoundError as error:
        if error.name != "pfo_gpu_playground":
            raise
        print(
            "python -m pfo_gpu: the simulated node is in a wheel of its own, which `make playground-wheel` builds in"
            " a checkout of pfo: pip install --no-index --find-links target/wheels pfo-gpu-playground",
            file=sys.stderr,
        )
        return 1
    return int(command.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
