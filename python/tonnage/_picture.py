# SPDX-License-Identifier: MIT OR Apache-2.0
"""What notebooks show: small HTML that needs no script, so that it survives export and mail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

#: Categories from the bottom up, in the order of the report. Their colours come with the figures, so that a notebook
#: shows those of the page.
CATEGORIES = {
    "weights": "weights",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "temporaries": "temporaries",
    "workspaces": "workspaces",
    "kv_cache": "KV cache",
    "other": "other",
}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 250, 70, 26, 12


def size(count: int | None) -> str:
    """Bytes in the largest binary unit that keeps them above one."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        # Two decimals would show 1023.995 as 1024.00.
        if value < (1024 if unit == "B" else 1023.995):
            return f"{value:.2f} {unit}" if unit != "B" else f"{count} B"
        value /= 1024
    return f"{value:.2f} TiB"


def ticks(most: int) -> list[int]:
    """Round levels up to a number of bytes, as the report has them: 1, 2, 5, 10 … of a binary unit."""
    step = next(
        (
            number * unit
            for unit in (1 << shift for shift in range(0, 60, 10))
            for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)
            if number * unit * 6 >= most
        ),
        max(most, 1),
    )
    return list(range(0, most + 1, step))


def words(text: str) -> str:
    """A text as the terminal would show it."""
    style = "font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.35;white-space:pre;overflow-x:auto"
    return f'<pre style="{style}">{escape(text)}</pre>'


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is a name, the others are figures."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def timeline(data: dict[str, Any]) -> str:
    """Bytes over time, stacked by category, under a line of what PyTorch reserved."""
    stretches = data["timeline"]
    if not stretches:
        return words("the recording shows no block of device memory")
    capacity, context = data.get("capacity"), data.get("context") or 0
    most = max(one["reserved"] for one in stretches)
    room = capacity - context if capacity else None
    # The GPU's end is drawn where it matters: when the job comes near it.
    ceiling = room if room and most > room / 3 else None
    scale = max(most, ceiling or 0, 1) * 1.04

    def x(index: int) -> float:
        return round(LEFT + (WIDTH - LEFT - 8) * index / len(stretches), 1)

    def y(count: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / scale), 1)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(data["verdict"], quote=True)}" '
        'style="width:100%;max-width:860px;font:11px system-ui,sans-serif;color:inherit">'
    ]
    for level in ticks(int(scale)):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(level)}" y2="{y(level)}" stroke="currentColor" '
            f'stroke-opacity=".15"/><text x="{LEFT - 6}" y="{y(level) + 4}" text-anchor="end" fill="currentColor">'
            f"{size(level).replace('.00', '') if level else '0'}</text>"
        )
    below = [0] * len(stretches)
    legend = []
    for key, name in CATEGORIES.items():
        colour = data["colours"][key]
        own = [one["categories"].get(key, 0) for one in stretches]
        if not any(own):
            continue
        above = [low + high for low, high in zip(below, own)]
        edge = _steps(above, x, y)
        back = _steps(below, x, y)[::-1]
        most_of_it = size(max(own))
        parts.append(
            f'<path d="M{"L".join(edge + back)}Z" fill="{colour}"><title>{name}: {most_of_it} at most</title></path>'
        )
        legend.append(
            f'<span style="white-space:nowrap"><span style="color:{colour}">■</span> {name} {most_of_it}</span>'
        )
        below = above
    reserved = [one["reserved"] for one in stretches]
    parts.append(
        f'<path d="M{"L".join(_steps(reserved, x, y))}" fill="none" stroke="currentColor" stroke-width="1.4">'
        f"<title>reserved: {size(most)} at most</title></path>"
    )
    if ceiling:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(ceiling)}" y2="{y(ceiling)}" stroke="#d62728" '
            f'stroke-dasharray="6 4" stroke-width="1.4"/><text x="{WIDTH - 10}" y="{y(ceiling) - 4}" '
            f'text-anchor="end" fill="#d62728">all of the GPU but its context: {size(ceiling)}</text>'
        )
    rows = stretches[-1]["row"]
    parts.append(
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="currentColor">0</text><text x="{WIDTH - 8}" y="{HEIGHT - 8}" '
        f'text-anchor="end" fill="currentColor">event {rows:,} →</text></svg>'
    )
    legend.append(f'<span style="white-space:nowrap">━ reserved by PyTorch {size(most)}</span>')
    return (
        f'<div><div style="font-weight:600">{escape(data["verdict"])}</div>{"".join(parts)}'
        '<div style="display:flex;flex-wrap:wrap;gap:4px 14px;font-size:12px;max-width:860px">'
        f"{''.join(legend)}</div></div>"
    )


def _steps(levels: Sequence[int], x: Any, y: Any) -> list[str]:
    """The corners of a line that holds each level for its stretch; equal neighbours share theirs."""
    corners = []
    for index, level in enumerate(levels):
        first = index == 0 or levels[index - 1] != level
        last = index == len(levels) - 1 or levels[index + 1] != level
        if first:
            corners.append(f"{x(index)} {y(level)}")
        if last:
            corners.append(f"{x(index + 1)} {y(level)}")
    return corners
