# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of docs/fidelity.md, made from results.jsonl."""

import statistics
from collections import defaultdict

from causes import BESIDE, CAUSES
from sources import SOURCES

TITLES = {
    "batch": "Batch sizes at which a script stops running out of memory",
    "bytes": "Peaks and counters",
    "events": "Events of the allocator, in order",
    "fits": "Runs that fit or run out of memory",
}


def difference(figure):
    return 100 * (figure["dry"] - figure["real"]) / figure["real"] if figure["real"] else 0.0


def optimistic(figure):
    """Whether the dry run completes more than the real GPU did."""
    if figure["unit"] == "fits":
        return figure["dry"] == "fits" and figure["real"] != "fits"
    return figure["dry"] > figure["real"]


def kind(figure):
    if figure["unit"] in ("batch", "events", "fits"):
        return figure["unit"]
    return "bytes"


def shown(figure, value):
    if figure["unit"] == "bytes":
        return f"{value / (1 << 20):,.3f} MiB"
    if figure["unit"] in ("batch", "events"):
        return f"{value:,}"
    if figure["unit"] == "fits":
        return str(value)
    return f"{value} {figure['unit']}"


def percent(value):
    return "0" if abs(value) < 0.0005 else f"{value:+.3f} %" if abs(value) < 0.1 else f"{value:+.2f} %"


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def thresholds_of(rows):
    """Counts thresholds of running out of memory in pairs of job and figure: all, right ones, those of which a larger
    batch completed in the dry run, and of these the ones with an uncertain verdict."""
    thresholds = [(job, figure) for job, figure in rows if kind(figure) in ("batch", "fits")]
    right = sum(1 for _, figure in thresholds if figure["real"] == figure["dry"])
    larger = [(job, figure) for job, figure in thresholds if optimistic(figure)]
    uncertain = sum(1 for job, figure in larger if cause(job, figure) == BESIDE)
    return len(thresholds), right, len(larger), uncertain


def differences(figures):
    """The differences of figures in bytes, in percent, by the counter that was measured."""
    groups = {"allocated memory": [], "reserved memory": [], "in use by the process": []}
    for figure in figures:
        if kind(figure) == "bytes":
            name = next((name for name in ("reserved", "in use") if name in figure["what"]), "allocated")
            groups[next(title for title in groups if title.startswith(name))].append(abs(difference(figure)))
    return groups


def tables(known, commit):
    rows = [(job, result, figure) for job, result in known for figure in result["figures"]]
    authors = sorted({SOURCES[job.source][2] for job, _, _ in rows}, key=str.lower)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[kind(row[2])].append(row)
    measured = by_kind["bytes"]
    groups = differences(figure for _, _, figure in measured)
    thresholds = by_kind["batch"] + by_kind["fits"]
    _, right, larger, uncertain = thresholds_of((job, figure) for job, _, figure in rows)
    wrong = len(thresholds) - right
    whole = sum(1 for _, _, figure in by_kind["events"] if figure["real"] == figure["dry"])
    above = [row for row in measured if abs(difference(row[2])) > 1] + [
        row for row in thresholds + by_kind["events"] if row[2]["real"] != row[2]["dry"]
    ]
    unknown = sum(1 for job, _, figure in above if cause(job, figure).startswith("unknown") or not cause(job, figure))
    text = [
        f"The page compares {len(rows)} figures by {len(authors)} authors: {', '.join(authors)}.",
        "",
        "| | figures | median difference | 95th percentile | largest |",
        "|---|---|---|---|---|",
    ]
    for name, values in groups.items():
        if values:
            cells = [statistics.median(values), quantile(values, 0.95), max(values)]
            text.append(f"| {name} | {len(values)} | {' | '.join(f'{value:.3f} %' for value in cells)} |")
    text += [
        "",
        f"* Out-of-memory thresholds: {right} of {len(thresholds)} right"
        + (f" ({100 * right / len(thresholds):.0f} %)." if thresholds else "."),
        f"* The {wrong} misses have a direction: in {larger} of them the dry run completes a batch that the real GPU"
        f" refused. The verdict of {uncertain} of these is *uncertain*, so {larger - uncertain} are false *fits*."
        f" {wrong - larger} is a false *does not fit*.",
        f"* Allocation traces: {whole} of {len(by_kind['events'])} agree in every event, its size, and its order.",
        f"* {len(above)} comparisons differ by more than 1 % or in their outcome."
        f" The cause of {unknown} of these is unknown.",
        "",
    ]
    for unit, title in TITLES.items():
        if by_kind[unit]:
            text += [f"### {title}", "", *table(by_kind[unit], unit, commit), ""]
    text += ["### Commands", "", *commands(known), ""]
    return "\n".join(text)


def cause(job, figure):
    for pattern, words in CAUSES:
        if pattern in f"{job.name}: {figure['what']}":
            return words
    return ""


def table(rows, unit, commit):
    lines = ["| author | torch | GPU | what | real | dry | difference | cause | commit |", "|---" * 9 + "|"]
    for job, result, figure in rows:
        same = figure["real"] == figure["dry"]
        if unit == "bytes":
            apart = percent(difference(figure))
        else:
            apart = "0" if same else "different"
        words = "" if same else cause(job, figure)
        if not words and not same and (unit != "bytes" or abs(difference(figure)) > 1):
            words = "unknown"
        cells = [SOURCES[job.source][2], job.torch, job.gpu, figure["what"], shown(figure, figure["real"])]
        lines.append(f"| {' | '.join([*cells, shown(figure, figure['dry']), apart, words, commit(result)])} |")
    return lines


def commands(known):
    """One command for each source and way, below its repository."""
    lines, seen = [], set()
    for job, result in known:
        key = (job.source, job.measure.__name__)
        if key not in seen and result["command"]:
            seen.add(key)
            repository, commit, _ = SOURCES[job.source]
            at = f" at `{commit}`" if commit else ""
            lines.append(f"* [{repository}](https://github.com/{repository}){at}, torch {job.torch}:")
            lines.append(f"  `{result['command']}`" + (f". {job.note}" if job.note else ""))
    return lines
