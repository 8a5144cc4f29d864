"""Least squares for what an energy counter saw: no library is needed for a handful of unknowns."""

from __future__ import annotations

from typing import Any, Optional

Spans = list[tuple[str, float, float]]
Counted = list[tuple[float, float]]


def least_squares(rows: list[list[float]], values: list[float]) -> Optional[list[float]]:
    """What multiplies the columns, so that the rows are as near to the values as can be."""
    size = len(rows[0]) if rows else 0
    table = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(rows, values))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(table[j][i]))
        if abs(table[pivot][i]) < 1e-9:
            return None
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [each / table[i][i] for each in table[i]]
        for j in range(size):
            if j != i and table[j][i]:
                table[j] = [a - table[j][i] * b for a, b in zip(table[j], table[i])]
    return [row[size] for row in table]


def time_in(spans: Spans, kinds: list[str], begin: float, end: float) -> list[float]:
    """For how long each kind, and none of them, lasted between two moments."""
    inside = dict.fromkeys(kinds, 0.0)
    for kind, began, ended in spans:
        if ended > begin and began < end:
            inside[kind] += min(ended, end) - max(began, begin)
    return [*inside.values(), (end - begin) - sum(inside.values())]


def in_rhythm(counted: Counted) -> Counted:
    """The counter's changes at the times of its rhythm: a slow read sees each a little later, now more, now less."""
    return rhythm(counted)[1]


def rhythm(counted: Counted) -> tuple[Optional[float], Counted]:
    """The counter's period in s, if it has one, and its changes at the times of that."""
    apart = sorted(after - before for (before, _), (after, _) in zip(counted, counted[1:]))
    if len(apart) < 8 or apart[len(apart) // 10] < 0.6 * apart[len(apart) // 2]:
        return None, counted
    usual, number, numbers = apart[len(apart) // 2], 0, [0]
    for (before, _), (after, _) in zip(counted, counted[1:]):
        number += max(1, round((after - before) / usual))
        numbers.append(number)
    mean_number = sum(numbers) / len(numbers)
    mean_at = sum(at for at, _ in counted) / len(counted)
    products = sum((n - mean_number) * (at - mean_at) for n, (at, _) in zip(numbers, counted))
    period = products / sum((n - mean_number) ** 2 for n in numbers)
    return period, [(mean_at + period * (n - mean_number), energy) for n, (_, energy) in zip(numbers, counted)]


def powers(spans: Spans, counted: Counted) -> Optional[dict[str, Any]]:
    """The power of each kind and of rest, by regression over the counter's changes.

    Times are in s, energy in J. A change may show what was drawn some time before it: the delay with the
    smallest rest is taken.
    """
    counted = in_rhythm(counted)
    kinds = sorted({kind for kind, _, _ in spans})
    inside = [(at, energy) for at, energy in counted if spans[0][1] <= at <= spans[-1][2]]
    if len(inside) < len(kinds) + 4:
        return None
    best: Optional[dict[str, Any]] = None
    for delay_ms in range(0, 160, 2):
        delay = delay_ms / 1e3
        rows, values = [], []
        for (begin, before), (end, after) in zip(inside, inside[1:]):
            rows.append(time_in(spans, kinds, begin - delay, end - delay))
            values.append(after - before)
        found = least_squares(rows, values)
        if found is None:
            continue
        rests = [value - sum(a * b for a, b in zip(row, found)) for row, value in zip(rows, values)]
        rms = (sum(rest * rest for rest in rests) / len(rests)) ** 0.5
        if best is None or rms < best["rms_j"]:
            best = {
                "delay_ms": delay_ms,
                "power_w": {name: round(w, 2) for name, w in zip([*kinds, "rest"], found)},
                "rms_j": rms,
                "mean_j": sum(values) / len(values),
                "intervals": len(values),
            }
    if best:
        best["rms_share"] = round(best["rms_j"] / best["mean_j"], 5) if best["mean_j"] else None
        best["rms_j"], best["mean_j"] = round(best["rms_j"], 4), round(best["mean_j"], 4)
    return best


def integral(changes: list[list[Any]], begin: float, end: float) -> float:
    """The integral of a reading that keeps its value until its next change, in units of the reading and s."""
    total = 0.0
    for (at, value), following in zip(changes, [*changes[1:], [end, None]]):
        low, high = max(at, begin), min(following[0], end)
        if high > low:
            total += value * (high - low)
    return total
