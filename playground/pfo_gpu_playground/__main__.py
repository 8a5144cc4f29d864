"""``python -m pfo_gpu_playground``, the same as ``python -m pfo_gpu playground``."""

import sys

from pfo_gpu_playground.command import main

if __name__ == "__main__":
    sys.exit(main())
