#!/bin/bash
# behaviour: The health of a GPU's NVLink fabric is one number of fields, each 0 (not supported), 1 (true) or 2 (false),
#   two bits wide. NVIDIA's Python bindings give a shift and a "WIDTH" for each field; the WIDTH is a mask, and up to
#   13.580.82 it is 0x11 where two bits would be 0x3. So (value >> SHIFT) & WIDTH loses every "false", and adds a bit of
#   the field two places on: a healthy GPU answers "not supported" for everything, and a GPU with an unhealthy route
#   answers 16 for its bandwidth, which is none of the three. A mask made from WIDTH as a number of bits is wrong, too.
#   From 13.580.126 on the constants are 0x3.
# seen: nvidia-ml-py 13.580.82 and 13.580.126, Python 3.11, without a driver; two values of the fabric's healthMask:
#   binding      health                       DEGRADED_BW  ROUTE_RECOVERY  ROUTE_UNHEALTHY  ACCESS_TIMEOUT_RECOVERY
#   13.580.82    all is well (0xaa)                     0               0                0                        0
#   13.580.82    a route is unhealthy (0x9a)           16               0                1                        0
#   13.580.126   all is well (0xaa)                     2               2                2                        2
#   13.580.126   a route is unhealthy (0x9a)            2               2                1                        2
# needs: python3 with venv, PyPI. Exits with 0 as long as the bindings behave so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
for version in 13.580.82 13.580.126; do
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$work/$version" \
        "nvidia-ml-py==$version"
done
for version in 13.580.82 13.580.126; do
    PYTHONPATH="$work/$version" "$work/venv/bin/python" - "$version" <<'PYTHON'
import sys

import pynvml

FIELDS = ["DEGRADED_BW", "ROUTE_RECOVERY", "ROUTE_UNHEALTHY", "ACCESS_TIMEOUT_RECOVERY"]
NAME = "NVML_GPU_FABRIC_HEALTH_MASK"


def constant(of, field):
    return getattr(pynvml, f"{NAME}_{of}_{field}")


def health(**true):
    """The number that a driver answers: every field is false but these."""
    value = 0
    for field in FIELDS:
        answer = getattr(pynvml, f"{NAME}_{field}_{'TRUE' if field in true else 'FALSE'}")
        value |= answer << constant("SHIFT", field)
    return value


def read(value):
    return [(value >> constant("SHIFT", field)) & constant("WIDTH", field) for field in FIELDS]


well, unhealthy = health(), health(ROUTE_UNHEALTHY=True)
assert (well, unhealthy) == (0xAA, 0x9A), (hex(well), hex(unhealthy))
version = sys.argv[1]
if version == "13.580.82":
    print(f"{'binding':<11}  {'health':<27}", *FIELDS, sep="  ")
seen = []
for words, value in [("all is well", well), ("a route is unhealthy", unhealthy)]:
    answers = read(value)
    columns = (f"{answer:>{len(field)}}" for field, answer in zip(FIELDS, answers))
    print(f"{version:<11}  {f'{words} ({value:#x})':<27}", *columns, sep="  ")
    seen.append(answers)

expected = {
    "13.580.82": [[0, 0, 0, 0], [16, 0, 1, 0]],
    "13.580.126": [[2, 2, 2, 2], [2, 2, 1, 2]],
}[version]
if seen != expected:
    sys.exit(f"seen {seen}, not {expected}: the behaviour has changed")
PYTHON
done
