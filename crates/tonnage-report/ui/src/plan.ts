// SPDX-License-Identifier: MIT OR Apache-2.0
// What the blocks would take if their lives had been known beforehand: the figures beside the picture.

import type { Planned } from "./data";
import { el, prose } from "./dom";
import { bytes, count, exact } from "./format";

/** How far a plan is above its bound, in words. */
function gap(plan: Planned): string {
  const over = plan.peak - plan.lower_bound;
  if (over <= 0) return "0: at the bound";
  return `${exact(over)}, ${((100 * over) / Math.max(1, plan.lower_bound)).toFixed(3)} %`;
}

/** The sentence and the figures. */
export function planFigures(plan: Planned): HTMLElement {
  const list = el("dl", { class: "facts" });
  const add = (name: string, text: string) => list.append(el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  add("peak of the plan", exact(plan.peak));
  add("lower bound", exact(plan.lower_bound));
  add("gap", gap(plan));
  if (plan.reserved !== null) add("reserved in the recording", exact(plan.reserved));
  add("blocks", `${count(plan.buffers)}${plan.pools.length > 1 ? ` in ${count(plan.pools.length)} pools` : ""}`);
  return el("div", {}, el("p", { class: "known" }, ...prose(`${plan.proved ? "✓ " : ""}${plan.sentence}.`)), list);
}

/** Bars: the bound, the plan, and what the recorded allocator held. */
export function planBars(plan: Planned): HTMLElement {
  const most = Math.max(1, plan.peak, plan.lower_bound, plan.reserved ?? 0);
  const percent = (value: number) => `${((100 * value) / most).toFixed(3)}%`;
  const row = (name: string, value: number, solid: number) =>
    el(
      "li",
      { title: exact(value) },
      el("div", { class: "who" }, name),
      el("div", { class: "bar", "aria-hidden": "true" }, el("span", { class: "live", style: `width:${percent(solid)}` }), value > solid ? el("span", { class: "cached", style: `width:${percent(value - solid)}` }) : null),
      el("div", { class: "figure" }, bytes(value)),
    );
  const bound = plan.lower_bound;
  const list = el("ul", { class: "bars" }, row("lower bound", bound, bound), row("plan", plan.peak, Math.min(bound, plan.peak)));
  if (plan.reserved !== null) list.append(row("reserved in the recording", plan.reserved, Math.min(bound, plan.reserved)));
  return list;
}
