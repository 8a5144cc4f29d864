"""``python -m pfo_gpu``: programs of the package."""

from __future__ import annotations

import argparse
import sys

from pfo_gpu import doctor


def main() -> int:
    """Runs the program that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m pfo_gpu", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    programs.add_parser("doctor", help=doctor.__doc__, description=doctor.__doc__)
    parser.parse_args()
    return doctor.main()


if __name__ == "__main__":
    sys.exit(main())
