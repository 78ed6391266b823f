// SPDX-License-Identifier: MIT OR Apache-2.0
// One bar of all that is on the GPU at a moment, against the capacity.

import type { Levels, Moment, Timeline } from "./data";
import { el } from "./dom";
import { bytes, exact } from "./format";

export interface Segment {
  /** The class that colours it. */
  swatch: string;
  name: string;
  bytes: number;
}

/** Memory on the GPU at a moment: categories, the largest first, then memory without a block. */
export function segmentsOf(timeline: Timeline, levels: Levels): Segment[] {
  const { facts } = timeline;
  const segments = timeline.present
    .map((category) => ({ swatch: `c${category}`, name: facts.categories[category], bytes: levels.byCategory[category] }))
    .sort((one, other) => other.bytes - one.bytes);
  if (timeline.hasReserved) segments.push({ swatch: "hole", name: "cached by PyTorch", bytes: levels.reserved - levels.allocated });
  segments.push({ swatch: "context", name: "context", bytes: facts.context });
  return segments.filter((segment) => segment.bytes > 0);
}

/** The bar; a line marks the capacity. Its figures stand beside it as text, so that it is hidden from screen readers. */
export function stackBar(segments: Segment[], capacity: number | null): HTMLElement {
  const used = segments.reduce((sum, segment) => sum + segment.bytes, 0);
  const whole = Math.max(1, used, capacity ?? 0);
  const percent = (value: number) => `${((100 * value) / whole).toFixed(3)}%`;
  const bar = el("div", { class: "stack-bar", "aria-hidden": "true" });
  for (const segment of segments) {
    bar.append(el("span", { class: `fill ${segment.swatch}${segment.bytes > whole / 100 ? " apart" : ""}`, style: `width:${percent(segment.bytes)}`, title: `${segment.name} ${exact(segment.bytes)}` }));
  }
  if (capacity !== null) bar.append(el("span", { class: "limit", style: `left:${percent(capacity)}` }));
  return bar;
}

/** The bar of a moment with its figures. */
export function momentBar(timeline: Timeline, moment: Moment): HTMLElement {
  const segments = segmentsOf(timeline, timeline.levelsNear(moment.row));
  const used = segments.reduce((sum, segment) => sum + segment.bytes, 0);
  const { capacity } = timeline.facts;
  const { refused } = moment;
  if (refused) segments.push({ swatch: "refused", name: "requested", bytes: refused.requested });
  const also = refused ? `, ${bytes(refused.requested)} requested` : "";
  const when = moment.kind === "out_of_memory" ? "At the failure" : "At the peak";
  const items = segments.map(({ swatch, name, bytes: size }) => el("li", {}, el("span", { class: `swatch ${swatch}` }), ` ${name} `, el("span", { class: "value" }, bytes(size))));
  if (capacity !== null && capacity > used) items.push(el("li", {}, el("span", { class: "swatch free" }), " free ", el("span", { class: "value" }, bytes(capacity - used))));
  return el("div", { class: "at-peak" }, el("h3", {}, `${when}: ${bytes(used)} in use${also}`), stackBar(segments, capacity), el("ul", { class: "legend" }, ...items));
}
