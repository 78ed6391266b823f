# SPDX-License-Identifier: MIT OR Apache-2.0
"""Charts and files of the pages that tests/fidelity and tests/compat write: SVG, CSV, and rows of a Markdown table.

A chart has its own dark background, like the terminal of the README, so that it reads the same on light and dark pages.
It needs no script and no font. Each mark has a title, which browsers show when the pointer rests on it.
"""

import csv
import io
import math
from html import escape

GROUND, EDGE, GRID = "#161b22", "#444c56", "#30363d"
TEXT, DIM, GOOD, FAIR, BAD = "#e6edf3", "#9aa4af", "#3fb68b", "#e3b341", "#ff6b5e"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,'DejaVu Sans',sans-serif"


def quantile(values, part):
    """The value that `part` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def render_svg(width, height, label, parts):
    """An SVG file with a background, from its parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(label)}" font-family="{escape(FONT)}" font-size="13" fill="{TEXT}">\n'
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{GROUND}" stroke="{EDGE}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def draw_text(x, y, text, color=TEXT, anchor="start", size=None, weight=None, turn=None):
    more = f' font-size="{size}"' if size else ""
    more += f' font-weight="{weight}"' if weight else ""
    more += f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def draw_line(x1, y1, x2, y2, color=GRID, dash=None):
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


def draw_dot(x, y, color, title, radius=4.0):
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}" fill-opacity=".75" stroke="{color}">'
        f"<title>{escape(title)}</title></circle>"
    )


def draw_bar(x, y, width, whole, color, height=18):
    """A bar of `width` in a track of `whole`."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{whole:.1f}" height="{height}" rx="3" fill="{GRID}"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="3" fill="{color}"/>'
    )


def draw_diagonal(points, left, top, side, axes):
    """Dots of (real, dry, color, title) on logarithmic axes of the same scale; equal values lie on the diagonal."""
    values = [value for real, dry, *_ in points for value in (real, dry)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def place(value):
        return (math.log10(value) - low) / (high - low) * side

    parts = []
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        value, at = 10**exponent, place(10**exponent)
        parts += [
            draw_line(left + at, top, left + at, top + side),
            draw_line(left, top + side - at, left + side, top + side - at),
            draw_text(left + at, top + side + 18, f"{value:g}", DIM, "middle"),
            draw_text(left - 8, top + side - at + 4, f"{value:g}", DIM, "end"),
        ]
    parts.append(draw_line(left, top + side, left + side, top, DIM, "4 4"))
    parts += [draw_dot(left + place(real), top + side - place(dry), color, title) for real, dry, color, title in points]
    parts.append(draw_text(left + side / 2, top + side + 40, axes[0], anchor="middle"))
    parts.append(draw_text(left - 40, top + side / 2, axes[1], anchor="middle", turn=-90))
    return parts


def render_csv(head, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


#: docs/assets/filter.js puts its fields in place of this element. Without JavaScript, it is empty.
FILTER = '<div class="table-filter"></div>'


def render_table(head, rows):
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows)])


def write_files(files):
    for path, text in files.items():
        path.write_text(text)


def list_differences(files, root):
    """The names of files that are not as they would be written."""
    return [
        str(path.relative_to(root)) for path, text in files.items() if not path.exists() or path.read_text() != text
    ]
