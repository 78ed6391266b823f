// SPDX-License-Identifier: MIT OR Apache-2.0
// What other allocators would have held for the same requests: bars, and lines where they are known.

import type { AllocatorRun, Timeline } from "./data";
import { el, Surface, type Palette } from "./dom";
import { bytes, exact, niceStep, roundBytes } from "./format";
import { Table } from "./table";
import { LEFT, RIGHT } from "./axis";
import type { View } from "./view";

/** Bars: what was alive, what was cached beside it, and the capacity. */
export function allocatorBars(runs: AllocatorRun[], timeline: Timeline): HTMLElement {
  const { capacity, context } = timeline.facts;
  const longest = Math.max(1, ...runs.map((run) => run.peak_reserved + context));
  // Against a far larger device all bars would be stubs.
  const limit = capacity !== null && capacity < 1.8 * longest ? capacity : null;
  const most = Math.max(limit ?? 0, longest);
  const percent = (value: number) => `${((100 * value) / most).toFixed(3)}%`;
  const list = el("ul", { class: "bars" });
  for (const run of runs) {
    const live = run.peak_reserved - run.cached_at_peak;
    const bar = el(
      "div",
      { class: "bar", "aria-hidden": "true" },
      el("span", { class: "context", style: `width:${percent(context)}` }),
      el("span", { class: "live", style: `width:${percent(live)}` }),
      el("span", { class: "cached", style: `width:${percent(run.cached_at_peak)}` }),
      limit !== null ? el("span", { class: "limit", style: `left:${percent(limit)}` }) : null,
    );
    list.append(
      el(
        "li",
        { title: `${exact(run.peak_reserved)} reserved, ${exact(live)} of it handed out at that moment` },
        el(
          "div",
          { class: "who" },
          el("code", {}, run.allocator),
          run.recorded ? el("span", { class: "tag" }, "recorded") : null,
          run.exact ? null : el("span", { class: "tag" }, "approximation"),
          run.completes ? null : el("span", { class: "tag bad" }, `✗ ${run.outcome}`),
        ),
        bar,
        el("div", { class: "figure" }, bytes(run.peak_reserved)),
      ),
    );
  }
  const box = el("div", {}, list);
  if (capacity !== null) box.append(el("p", { class: "note" }, limit === null ? `the capacity, ${bytes(capacity)}, is far beyond all bars` : `dashed line: the capacity, ${bytes(capacity)}`));
  return box;
}

export function allocatorTable(runs: AllocatorRun[]): Table {
  const table = new Table("Allocators that served the same requests", [
    { name: "allocator", kind: "text" },
    { name: "peak reserved", kind: "bytes" },
    { name: "handed out then", kind: "bytes" },
    { name: "cached beside it", kind: "bytes" },
    { name: "smallest device", kind: "bytes" },
    { name: "driver calls", kind: "count" },
    { name: "retries", kind: "count" },
    { name: "outcome", kind: "text" },
    { name: "known", kind: "text" },
  ]);
  table.set(
    runs.map((run) => [
      run.recorded ? `${run.allocator} (recorded)` : run.allocator,
      run.peak_reserved,
      run.peak_reserved - run.cached_at_peak,
      run.cached_at_peak,
      run.smallest,
      run.calls,
      run.retries,
      run.outcome,
      run.exact ? "exact" : "approximation",
    ]),
  );
  return table;
}

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4]];

/** Lines of held memory over time, distinguished by dashes and by their names at the end. */
export class AllocatorLines {
  readonly surface: Surface;

  constructor(
    private readonly runs: AllocatorRun[],
    private readonly view: View,
    private readonly colors: () => Palette,
  ) {
    this.surface = new Surface("Reserved bytes over time under each allocator; the table below has the peaks.", 190, () => this.draw());
  }

  draw(): void {
    const { width, height } = this.surface;
    if (width <= LEFT + RIGHT) return;
    const colors = this.colors();
    const context = this.surface.begin();
    const plot = width - LEFT - RIGHT;
    const [top, floor] = [10, height - 8];
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const most = Math.max(1, ...this.runs.map((run) => run.peak_reserved)) * 1.05;
    const y = (value: number) => floor - (value / most) * (floor - top);
    const x = (row: number) => LEFT + ((row - this.view.from) / (this.view.to - this.view.from)) * plot;
    const step = niceStep(most / 4, true);
    context.textAlign = "right";
    for (let value = 0; value <= most; value += step) {
      context.fillStyle = colors.grid;
      context.fillRect(LEFT, Math.round(y(value)), plot, 1);
      context.fillStyle = colors.muted;
      context.fillText(value ? roundBytes(value) : "0", LEFT - 6, Math.min(floor - 2, y(value)));
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, plot, height);
    context.clip();
    const labels: [number, string, string][] = [];
    const strokes = [colors.categories[0], colors.categories[2], colors.categories[4], colors.categories[3], colors.categories[5]];
    this.runs.forEach((run, index) => {
      if (run.series.length === 0) return;
      context.strokeStyle = strokes[index % strokes.length];
      context.lineWidth = run.recorded ? 2.5 : 1.5;
      context.setLineDash(DASHES[index % DASHES.length]);
      context.beginPath();
      let last = 0;
      let begun = false;
      // Only what is shown: dashes of a line that reaches far beyond take the browser long.
      for (const [row, value] of run.series) {
        if (row > this.view.to) break;
        const at = Math.max(LEFT, x(row));
        if (!begun) context.moveTo(at, y(value));
        else if (row >= this.view.from) context.lineTo(at, y(last));
        if (begun && row < this.view.from) {
          context.beginPath();
          context.moveTo(at, y(value));
        } else if (begun) {
          context.lineTo(at, y(value));
        }
        begun = true;
        last = value;
      }
      context.lineTo(LEFT + plot, y(last));
      context.stroke();
      labels.push([y(last), run.allocator, strokes[index % strokes.length]]);
    });
    context.setLineDash([]);
    context.restore();
    labels.sort((one, other) => one[0] - other[0]);
    let free = top + 2;
    for (const [at, name] of labels) {
      const line = Math.max(free, at - 8);
      context.lineWidth = 3;
      context.strokeStyle = colors.background;
      context.strokeText(name, width - RIGHT - 4, line);
      context.fillStyle = colors.text;
      context.fillText(name, width - RIGHT - 4, line);
      free = line + 13;
    }
  }
}
