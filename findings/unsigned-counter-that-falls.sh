#!/bin/bash
# behaviour: A GPU's energy counter is an unsigned number of mJ, and begins at 0 again when the driver is loaded. What
#   the difference of the readings then is depends on the library, and on the way that the readings came. NumPy,
#   pandas and Arrow wrap it around to 5 TWh, so that a test for a negative difference finds none; pandas makes it a
#   float besides. Polars has both: diff() is negative, and subtracting shift() wraps around. DuckDB fails. pandas
#   reads the same numbers from CSV as signed and computes a negative difference, and from Parquet as unsigned: a
#   check that was tried with CSV files lets the 5 TWh pass. NumPy's sum of the differences wraps back, and hides it
#   in a total.
# seen: numpy 2.4.6, pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1; a counter falls from 1000 MJ to 40 J:
#   1.8e19 mJ           numpy.diff; pandas diff of uint64, of UInt64 and of Parquet; polars s - s.shift();
#                       pyarrow subtract and pairwise_diff
#   -1000000260000 mJ   polars s.diff(); pandas diff of CSV
#   an error            duckdb mj - lag(mj); pyarrow subtract_checked
#   the sum of numpy.diff, as signed: the last reading less the first
# needs: python3 with venv, PyPI. Exits with 0 as long as the five do so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 \
    duckdb==2.0.1
venv/bin/python - <<'PYTHON'
import sys

import duckdb
import numpy
import pandas
import polars
import pyarrow
import pyarrow.compute
import pyarrow.parquet

READINGS_MJ = [1_000_000_000_000, 1_000_000_300_000, 40_000, 340_000]
FELL = 40_000 - 1_000_000_300_000
AROUND = 2**64 + FELL


def expect(what, got, wanted):
    print(f"{what:<38} {got}")
    if got != wanted:
        sys.exit(f"expected {wanted}: the behaviour has changed")


def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


unsigned = numpy.array(READINGS_MJ, dtype=numpy.uint64)
differences = numpy.diff(unsigned)
expect("numpy.diff", int(differences[1]), AROUND)
expect("numpy.diff, any is negative", bool((differences < 0).any()), False)
expect("numpy.diff, their sum as signed", int(differences.sum().astype(numpy.int64)), 340_000 - 1_000_000_000_000)

expect("pandas diff of uint64", pandas.Series(unsigned).diff()[2], float(AROUND))
expect("pandas diff of UInt64", int(pandas.Series(unsigned, dtype="UInt64").diff()[2]), AROUND)
arrow = pyarrow.table({"mj": pyarrow.array(READINGS_MJ, pyarrow.uint64())})
pyarrow.parquet.write_table(arrow, "readings.parquet")
pandas.DataFrame({"mj": unsigned}).to_csv("readings.csv", index=False)
expect("pandas diff of Parquet", pandas.read_parquet("readings.parquet")["mj"].diff()[2], float(AROUND))
expect("pandas diff of CSV", pandas.read_csv("readings.csv")["mj"].diff()[2], float(FELL))

series = polars.Series(READINGS_MJ, dtype=polars.UInt64)
expect("polars diff()", series.diff()[2], FELL)
expect("polars s - s.shift()", (series - series.shift())[2], AROUND)

column = arrow["mj"].combine_chunks()
expect("pyarrow pairwise_diff", pyarrow.compute.pairwise_diff(column)[2].as_py(), AROUND)
expect("pyarrow subtract", pyarrow.compute.subtract(column[1:], column[:-1])[1].as_py(), AROUND)
refused = error_of(lambda: pyarrow.compute.subtract_checked(column[1:], column[:-1]))
expect("pyarrow subtract_checked", refused, "ArrowInvalid")

query = "select mj - lag(mj) over (order by i) from (select mj, row_number() over () i from 'readings.parquet')"
expect("duckdb mj - lag(mj)", error_of(lambda: duckdb.sql(query).fetchall()), "OutOfRangeException")
PYTHON
