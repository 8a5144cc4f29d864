#!/bin/bash
# behaviour: A moving sum of SQLite, `sum(j) OVER (ROWS … PRECEDING)`, subtracts the readings that leave its window. So
#   one wrong reading changes all windows after it, also those that do not contain it. After an infinite one, such as
#   the power of a step of zero length, each window is NULL to the end of the query, and a test for a limit finds
#   nothing any more. After 1.8e16 J, which is a counter of mJ that wrapped around, SQLite 3.40.1 (that of Debian 12)
#   is off by a joule from then on, at any length; SQLite 3.54.1 compensates that, and not the infinity. DuckDB, Polars
#   and pandas are right as soon as the reading has left; to pandas an infinite reading is a missing one.
# seen: SQLite 3.40.1 and 3.54.1 (apsw), pandas 3.1.1, polars 2.1.0, duckdb 2.0.1. Windows of 3 readings of 100.3,
#   100.4, X, 100.3, 100.4, 100.3, …; the three windows with X, and the last of seven without:
#   X = 1.8e16:  SQLite 3.40.1  huge huge huge 300.3    all others       huge huge huge 301.0
#   X = inf:     SQLite, both   inf inf inf NULL        Polars, DuckDB   inf inf inf 301.0    pandas  nan nan nan 301.0
# needs: python3 with venv, PyPI. Exits with 0 as long as they compute so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for version in 3.40.1.0 3.54.1.0; do
    python3 -m venv "sqlite-$version"
    "sqlite-$version/bin/pip" install --quiet --disable-pip-version-check "apsw==$version"
done
python3 -m venv others
others/bin/pip install --quiet --disable-pip-version-check pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
cat > readings.py <<'PYTHON'
import math

WRAPPED = 1.8e16
QUERY = "select sum(j) over (order by i rows 2 preceding) from readings order by i"


def readings(wrong):
    usual = [100.3, 100.4] * 6
    return usual[:2] + [wrong] + usual[:9]


def show(who, wrong, sums):
    """Prints the windows with the wrong reading, and the last one without."""
    words = ("NULL" if s is None else "huge" if 1e9 < s < math.inf else f"{s:.1f}" for s in [*sums[2:5], sums[-1]])
    print(f"X = {wrong}, {who}:", *words)
PYTHON
cat > sqlite.py <<'PYTHON'
import math

import apsw
from readings import QUERY, WRAPPED, readings, show

for wrong in (WRAPPED, math.inf):
    rows = apsw.Connection(":memory:").cursor()
    rows.execute("create table readings (i integer primary key, j real)")
    rows.executemany("insert into readings values (?, ?)", enumerate(readings(wrong)))
    show(f"SQLite {apsw.sqlitelibversion()}", wrong, [row[0] for row in rows.execute(QUERY)])
PYTHON
cat > others.py <<'PYTHON'
import math

import duckdb
import pandas
import polars
from readings import QUERY, WRAPPED, readings, show

for wrong in (WRAPPED, math.inf):
    values = readings(wrong)
    show("pandas", wrong, pandas.Series(values).rolling(3).sum().tolist())
    show("polars", wrong, polars.Series(values).rolling_sum(3).to_list())
    rows = duckdb.connect()
    rows.execute("create table readings (i integer, j double)")
    rows.executemany("insert into readings values (?, ?)", list(enumerate(values)))
    show("duckdb", wrong, [row[0] for row in rows.execute(QUERY).fetchall()])
PYTHON
{
    sqlite-3.40.1.0/bin/python sqlite.py
    sqlite-3.54.1.0/bin/python sqlite.py
    others/bin/python others.py
} | tee got
diff - got <<'EXPECTED' || { echo "expected the lines marked <: the behaviour has changed" >&2; exit 1; }
X = 1.8e+16, SQLite 3.40.1: huge huge huge 300.3
X = inf, SQLite 3.40.1: inf inf inf NULL
X = 1.8e+16, SQLite 3.54.1: huge huge huge 301.0
X = inf, SQLite 3.54.1: inf inf inf NULL
X = 1.8e+16, pandas: huge huge huge 301.0
X = 1.8e+16, polars: huge huge huge 301.0
X = 1.8e+16, duckdb: huge huge huge 301.0
X = inf, pandas: nan nan nan 301.0
X = inf, polars: inf inf inf 301.0
X = inf, duckdb: inf inf inf 301.0
EXPECTED
