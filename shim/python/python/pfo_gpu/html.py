"""HTML for notebooks. Pictures are SVG, which needs no further package."""

from __future__ import annotations

from html import escape
from typing import Iterable, Optional, Sequence

_WIDTH, _HEIGHT, _EDGE = 480, 240, 40


def escaped(text: object) -> str:
    """The text, escaped for HTML."""
    return escape(str(text))


def table(title: str, rows: Iterable[tuple[str, Optional[object]]]) -> str:
    """A table of names and values, without the rows whose value is None."""
    cells = [
        f"<tr><th style='text-align:left'>{escaped(name)}</th><td style='text-align:left'>{escaped(value)}</td></tr>"
        for name, value in rows
        if value is not None
    ]
    return f"<table><caption>{escaped(title)}</caption>{''.join(cells)}</table>"


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header; None becomes an empty cell."""
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(cell: object) -> str:
    return f"<td>{escaped('' if cell is None else cell)}</td>"


def curve(points: Sequence[tuple[float, float]], x: str, y: str) -> str:
    """An SVG picture of points (x, y), joined by a line."""
    across, up = _Scale([point[0] for point in points], _WIDTH), _Scale([point[1] for point in points], _HEIGHT)
    places = " ".join(f"{across.at(a):.1f},{_HEIGHT - up.at(b):.1f}" for a, b in points)
    middle = f"text-anchor='middle' x='{_WIDTH / 2}' y='{_HEIGHT - 4}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}' font-size='11'"
        f" font-family='sans-serif'><rect width='100%' height='100%' fill='white'/>"
        f"<polyline points='{places}' fill='none' stroke='#1f77b4' stroke-width='2'/>"
        f"<text {middle}>{escaped(x)}: {across.least:.4g} to {across.most:.4g}</text>"
        f"<text text-anchor='middle' transform='translate(12 {_HEIGHT / 2}) rotate(-90)'>"
        f"{escaped(y)}: {up.least:.4g} to {up.most:.4g}</text></svg>"
    )


class _Scale:
    """From figures to places on a side of the picture."""

    def __init__(self, figures: Sequence[float], length: int) -> None:
        self.least, self.most = min(figures), max(figures)
        self._length = length

    def at(self, figure: float) -> float:
        span = self.most - self.least
        share = (figure - self.least) / span if span else 0.5
        return _EDGE + share * (self._length - 2 * _EDGE)
