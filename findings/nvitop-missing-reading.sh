#!/bin/bash
# behaviour: A reading that a GPU does not have is N/A in nvitop, a string that does arithmetic, and it gives three
#   answers to "how much is that": it compares greater than every number, infinity included; float() makes it NaN; and
#   int() makes it 0. So `power > limit` holds for a GPU without a power sensor, max() of many GPUs is N/A, and a sum
#   of int() counts it as nothing, silently. Without a driver, Device.all() is an empty list while Device.count()
#   raises.
# seen: nvitop 1.7.2 with nvidia-ml-py 13.615.71, Python 3.11, no driver:
#   N/A > 1e308  True    N/A > inf  True    max  N/A    float  nan    int  0    json of N/A / 1000  NaN
#   Device.all()  []    Device.count()  NVMLError_LibraryNotFound
# needs: python3 with venv, PyPI; the last two lines need a machine without NVIDIA's driver, and are skipped elsewhere.
#   Exits with 0 as long as nvitop behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check nvitop==1.7.2 nvidia-ml-py==13.615.71
"$work/venv/bin/python" - 2> "$work/hints" <<'PYTHON'
import ctypes
import json
import math
import sys

from nvitop import NA, Device


def expect(what, got, wanted):
    print(f"{what:<28} {got}")
    if got != wanted:
        print(f"{what} is {got}, not {wanted}: the behaviour has changed", file=sys.stdout)
        sys.exit(1)


expect("N/A > 1e308", NA > 1e308, True)
expect("N/A > infinity", NA > math.inf, True)
expect("N/A < 0", NA < 0, False)
expect("max of 45, 61, N/A", str(max([45, 61, NA])), "N/A")
expect("float(N/A) is NaN", math.isnan(float(NA)), True)
expect("int(N/A)", int(NA), 0)
expect("json of N/A / 1000", json.dumps(NA / 1000), "NaN")

try:
    ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    expect("Device.all()", Device.all(), [])
    try:
        counted = str(Device.count())
    except Exception as error:
        counted = type(error).__name__
    expect("Device.count()", counted, "NVMLError_LibraryNotFound")
else:
    print("skipped: this machine has NVIDIA's driver")
PYTHON
