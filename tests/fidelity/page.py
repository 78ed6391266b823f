# SPDX-License-Identifier: MIT OR Apache-2.0
"""The summary, the plot, and the tables of docs/fidelity.md and docs/fidelity-rows.md, made from results.jsonl."""

import statistics
from collections import defaultdict

import charts
from causes import BESIDE, CAUSES
from sources import SOURCES

#: Kinds of figures, as the table names them.
TITLES = {"batch": "batch size", "bytes": "memory", "events": "events", "fits": "outcome"}
#: Bytes of each unit.
UNITS = {"bytes": 1, "MiB": 1 << 20, "GiB": 1 << 30, "GB": 10**9}


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


def rows_of(known):
    return [(job, result, figure) for job, result in known for figure in result["figures"]]


def group_by_kind(rows):
    groups = defaultdict(list)
    for row in rows:
        groups[kind(row[2])].append(row)
    return groups


def is_miss(figure):
    """Whether a figure differs in its outcome, or by more than 1 %."""
    return abs(difference(figure)) > 1 if kind(figure) == "bytes" else figure["real"] != figure["dry"]


def cause_of(job, figure):
    """The cause of a difference for a table: empty for equal figures and for small differences without a cause."""
    if figure["real"] == figure["dry"]:
        return ""
    return cause(job, figure) or ("unknown" if is_miss(figure) else "")


def join_names(names):
    return f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 2 else " and ".join(names)


def sort_versions(versions):
    return sorted(set(versions), key=lambda text: [int(part) for part in text.split(".")])


def shares(figures):
    """How many figures in bytes are equal, and how many differ by at most a part of a percent."""
    apart = [abs(difference(figure)) for figure in figures]
    limits = {"equal": 0, "within 0.1 %": 0.1, "within 1 %": 1, "within 5 %": 5}
    return {name: sum(1 for value in apart if value <= limit) for name, limit in limits.items()}, len(apart)


def summary(known, logs):
    """The opening of the page: figures of all comparisons, in ten lines. `logs` are those of servers."""
    rows = rows_of(known)
    groups, by_kind = differences(figure for *_, figure in rows), group_by_kind(rows)
    within, measured = shares([figure for *_, figure in by_kind["bytes"]])
    number, right, larger, uncertain = thresholds_of([(job, figure) for job, _, figure in rows])
    wrong = number - right
    whole = sum(1 for *_, figure in by_kind["events"] if figure["real"] == figure["dry"])
    authors = sorted({SOURCES[job.source][2] for job, *_ in rows}, key=str.lower)
    torches = sort_versions(job.torch for job, *_ in rows)
    gpus = sorted({job.gpu for job, *_ in rows})
    lines = [
        f"* **Figures:** {len(rows)}, published by {len(authors)} authors: {join_names(authors)}.",
        f"* **GPUs:** {join_names(gpus)}, with PyTorch {torches[0]} to {torches[-1]}.",
    ]
    for name, values in groups.items():
        if values:
            lines.append(
                f"* **{name[0].upper()}{name[1:]}:** a median difference of {statistics.median(values):.3f} % and a"
                f" 95th percentile of {charts.quantile(values, 0.95):.3f} %, in {len(values)} figures."
            )
    lines += [
        f"* **Share within 1 %:** {within['within 1 %']} of {measured} peaks and counters"
        f" ({100 * within['within 1 %'] / measured:.0f} %). {within['equal']} of them are equal.",
        f"* **Out-of-memory thresholds:** {right} of {number} are right ({100 * right / number:.0f} %).",
        f"* **Misses:** {wrong}. In {larger} of them, the dry run completes a batch that the real GPU refused:"
        f" {larger - uncertain} are false *fits*, and {uncertain} have the verdict *uncertain*."
        f" The remaining {wrong - larger} is a false *does not fit*.",
        f"* **Allocation traces:** {whole} of {len(by_kind['events'])} agree in every event, its size, and its order.",
        f"* **vLLM:** {logs}",
    ]
    return "\n".join(lines)


def draw_plot(known):
    """The dry run of each figure in bytes against the measurement, and how many differ by how much."""
    rows = group_by_kind(rows_of(known))["bytes"]
    within, number = shares([figure for *_, figure in rows])
    points = []
    for job, _, figure in rows:
        real, dry = (figure[side] * UNITS[figure["unit"]] / (1 << 30) for side in ("real", "dry"))
        title = f"{SOURCES[job.source][2]}, {figure['what']}: {real:.3f} GiB measured, {dry:.3f} GiB in the dry run"
        points.append((real, dry, charts.BAD if is_miss(figure) else charts.GOOD, title))
    # Misses lie above the others.
    points.sort(key=lambda point: point[2] == charts.BAD)
    parts = [charts.draw_text(24, 32, "Dry run against real GPU, GiB", size=16, weight=600)]
    parts += charts.draw_diagonal(points, 76, 52, 344, ("measured on a real GPU, GiB", "dry run, GiB"))
    left, bar = 470, 240
    parts.append(charts.draw_text(left, 32, f"{number} peaks and counters", size=16, weight=600))
    for place, (name, count) in enumerate(within.items()):
        y = 66 + 52 * place
        parts += [
            charts.draw_text(left, y, name, charts.DIM),
            charts.draw_text(left + bar, y, f"{count} ({100 * count / number:.0f} %)", anchor="end", weight=600),
            charts.draw_bar(left, y + 8, bar * count / number, bar, charts.GOOD),
        ]
    total, right, larger, uncertain = thresholds_of([(job, figure) for job, _, figure in rows_of(known)])
    parts += [
        charts.draw_text(left, 300, f"{total} OOM thresholds", size=16, weight=600),
        charts.draw_text(left, 326, "right", charts.DIM),
        charts.draw_text(left + bar, 326, f"{right} ({100 * right / total:.0f} %)", anchor="end", weight=600),
        charts.draw_bar(left, 334, bar * right / total, bar, charts.GOOD),
        charts.draw_text(left, 378, "false “fits”", charts.DIM),
        charts.draw_text(left + bar, 378, str(larger - uncertain), anchor="end", weight=600),
        charts.draw_bar(left, 386, bar * (larger - uncertain) / total, bar, charts.BAD),
        charts.draw_dot(left + 5, 430, charts.GOOD, "within 1 %"),
        charts.draw_text(left + 16, 434, "within 1 %", charts.DIM),
        charts.draw_dot(left + 105, 430, charts.BAD, "more than 1 %"),
        charts.draw_text(left + 116, 434, f"more than 1 %: {number - within['within 1 %']}", charts.DIM),
    ]
    label = (
        f"{number} figures of dry runs against measurements of real GPUs: {within['within 1 %']} are within 1 %."
        f" {right} of {total} out-of-memory thresholds are right."
    )
    return charts.render_svg(734, 456, label, parts), label


def render_misses(known):
    """The comparisons that differ, by cause, the most frequent cause first."""
    groups = defaultdict(list)
    for job, _, figure in rows_of(known):
        if is_miss(figure):
            groups[cause_of(job, figure)].append((job, figure))
    rows = []
    for words, missed in sorted(groups.items(), key=lambda item: (item[0].startswith("unknown"), -len(item[1]))):
        for job, figure in missed:
            apart = percent(difference(figure)) if kind(figure) == "bytes" else "different"
            values = [shown(figure, figure[side]) for side in ("real", "dry")]
            rows.append([SOURCES[job.source][2], job.gpu, figure["what"], *values, apart, words])
    unknown = sum(1 for *_, words in rows if words.startswith("unknown"))
    opening = (
        f"{len(rows)} comparisons differ in their outcome or by more than 1 %. The cause of {unknown} is unknown."
        " The other causes were tested."
    )
    table = charts.render_table(["author", "GPU", "figure", "real", "dry", "difference", "cause"], rows)
    return f"{opening}\n\n{table}"


def render_rows(known, commit):
    """All comparisons in one table."""
    groups = group_by_kind(rows_of(known))
    rows = []
    for unit, title in TITLES.items():
        for job, result, figure in groups[unit]:
            same = figure["real"] == figure["dry"]
            apart = percent(difference(figure)) if unit == "bytes" else "0" if same else "different"
            values = [shown(figure, figure[side]) for side in ("real", "dry")]
            cells = [title, SOURCES[job.source][2], job.torch, job.gpu, figure["what"], *values, apart]
            rows.append([*cells, cause_of(job, figure), commit(result)])
    return charts.render_table(
        ["kind", "author", "torch", "GPU", "figure", "real", "dry", "difference", "cause", "commit"], rows
    )


def render_csv(known, logs):
    """All comparisons, and each term of the logs of servers, with exact values."""
    head = ["job", "kind", "author", "source", "torch", "gpu", "figure", "unit", "real", "dry", "difference_percent"]
    rows = []
    for job, result, figure in rows_of(known):
        same = figure["real"] == figure["dry"]
        apart = f"{difference(figure):.4f}" if kind(figure) == "bytes" else "" if not same else "0"
        repository, at, author = SOURCES[job.source]
        source = f"https://github.com/{repository}" + (f"/tree/{at}" if at else "")
        cells = [job.name, kind(figure), author, source, job.torch, job.gpu, figure["what"], figure["unit"]]
        cells += [figure["real"], figure["dry"], apart, cause_of(job, figure)]
        rows.append([*cells, result["commit"], result["command"]])
    for log, result in logs:
        for figure in result["figures"]:
            real, dry = figure["real"], figure["dry"]
            if real is None or dry is None:
                continue
            unit = "tokens" if figure["what"] == "tokens" else "GiB"
            apart = f"{100 * (dry - real) / real:.4f}" if real else ""
            cells = [log.name, "server", "vLLM", log.source, log.torch, log.gpu, f"{log.what}: {figure['what']}"]
            rows.append([*cells, unit, real, dry, apart, log.cause, result["commit"], result["command"]])
    return charts.render_csv([*head, "cause", "commit", "command"], rows)


def cause(job, figure):
    for pattern, words in CAUSES:
        if pattern in f"{job.name}: {figure['what']}":
            return words
    return ""


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
