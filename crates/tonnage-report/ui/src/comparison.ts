// SPDX-License-Identifier: MIT OR Apache-2.0
// The page of two recordings: the difference in a sentence, its parts, and both side by side on one scale.

import type { Blocks, Difference, PageFacts, Timeline } from "./data";
import { el } from "./dom";
import { bytes, exact } from "./format";
import { helpDialog } from "./help";
import { paneKey } from "./keys";
import { Pane } from "./pane";
import { SelectionPanel } from "./panels/selection";
import { section } from "./parts";
import { pageHead } from "./report";
import { segmentsOf, stackBar } from "./stack";
import { ThemeSwitch } from "./theme";

const ROWS = 12;
/** The name of facts that make a comparison doubtful. */
const REMARK = "ended";

export class ComparisonPage {
  readonly panes: Pane[];
  private readonly theme: ThemeSwitch;
  private readonly help = helpDialog();
  /** The pane that keys act on: the one that was touched last. */
  private active: Pane;

  constructor(facts: PageFacts, app: HTMLElement, timelines: Timeline[]) {
    const { story } = facts;
    this.theme = new ThemeSwitch(() => this.panes?.forEach((pane) => pane.redraw()));
    const least = Math.max(...timelines.map((timeline) => timeline.mostUsed));
    const columns: HTMLElement[] = [];
    this.panes = timelines.map((timeline, number) => {
      const selection: SelectionPanel = new SelectionPanel(`selection-${number}`, () => this.panes[number].clear());
      const pane = new Pane(timeline, { number, prefix: number === 0 ? "before-" : "after-", least, kept: false, selection, pinning: () => false, cause: null });
      pane.view.toCapacity = false;
      const title = el("h2", { id: `column-${number}`, class: "column-title" }, facts.panes[number]);
      const column = el("div", { class: "column", role: "group", "aria-labelledby": title.id }, title, ...pane.elements, selection.element);
      // Both columns have the same sections: each is called by its recording, too.
      for (const element of pane.elements) element.setAttribute("aria-labelledby", `${title.id} ${element.getAttribute("aria-labelledby") ?? ""}`);
      for (const element of column.querySelectorAll("nav, aside, [role=region]")) element.setAttribute("aria-label", `${element.getAttribute("aria-label") ?? ""}, ${facts.panes[number]}`);
      column.addEventListener("pointerdown", () => (this.active = pane));
      column.addEventListener("focusin", () => (this.active = pane));
      columns.push(column);
      return pane;
    });
    this.active = this.panes[0];
    app.replaceChildren(
      pageHead({ ...story, facts: story.facts.filter((fact) => fact.name !== REMARK) }, this.theme, this.help),
      el(
        "main",
        {},
        summary(facts, timelines),
        el("div", { class: "groups" }, ...(story.comparison?.groups ?? []).map((group, index) => differences(index, group.title, group.rows))),
        el("div", { class: "columns" }, ...columns),
      ),
      el("footer", {}, `${story.producer} · both recordings are drawn on one scale · this file needs no network and sends nothing`),
      this.help,
    );
    for (const pane of this.panes) pane.firstPicture();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("scroll", () => this.panes.forEach((pane) => pane.tip.leave()), { passive: true });
  }

  setBlocks(number: number, blocks: Blocks): void {
    this.panes[number].setBlocks(blocks);
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (event.key === "Escape" && !this.help.open) {
      for (const pane of this.panes) pane.clear();
      return;
    }
    if (event.key.startsWith("Arrow") && target.closest(".table, .selection")) return;
    if (target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (event.key === "t") this.theme.toggle();
    else if (event.key === "?") this.help.showModal();
    else if (!paneKey(this.active, event)) return;
    event.preventDefault();
  }
}

/** The difference in one sentence with the largest part of it, a bar for each recording, and what makes them hard to compare. */
function summary({ story, panes }: PageFacts, timelines: Timeline[]): HTMLElement {
  const card = el("section", { id: "summary", class: `answer ${story.tone}`, "aria-labelledby": "summary-title" });
  const groups = story.comparison?.groups ?? [];
  const total = groups[0]?.rows[0];
  const change = total ? total.after - total.before : 0;
  const words = change === 0 ? `${panes[1]} allocates as much as ${panes[0]} at the peak` : `${panes[1]} allocates ${bytes(Math.abs(change))} ${change > 0 ? "more" : "less"} at the peak`;
  // The part that changed the most in the same direction.
  const parts = groups.slice(1).filter((group) => group.title.endsWith("at the peak")).at(-1)?.rows ?? [];
  const same = parts.filter((row) => Math.sign(row.after - row.before) === Math.sign(change) && change !== 0);
  const most = same.sort((one, other) => Math.abs(other.after - other.before) - Math.abs(one.after - one.before))[0];
  card.append(el("h2", { id: "summary-title" }, total ? words : story.verdict));
  if (most) card.append(el("p", { class: "detail" }, `Largest part: ${most.what}, ${bytes(most.before)} → ${bytes(most.after)}`));
  if (total && story.verdict) card.append(el("p", { class: "verdict" }, story.verdict));
  const remarks = story.facts.filter((fact) => fact.name === REMARK).map((fact) => fact.text);
  for (const remark of remarks) card.append(el("p", { class: "remark" }, el("span", { "aria-hidden": "true" }, "⚠ "), remark));
  card.append(pair(panes, timelines));
  return card;
}

/** Both peaks by category on one scale. */
function pair(names: string[], timelines: Timeline[]): HTMLElement {
  const all = timelines.map((timeline) => {
    const moment = timeline.facts.moments.find((one) => one.kind === "peak");
    return moment ? segmentsOf(timeline, timeline.levelsNear(moment.row)).filter((segment) => segment.swatch.startsWith("c") && segment.swatch !== "context") : [];
  });
  const sums = all.map((segments) => segments.reduce((sum, segment) => sum + segment.bytes, 0));
  const whole = Math.max(1, ...sums);
  const rows = all.map((segments, number) => {
    const bar = stackBar(segments, null);
    bar.style.width = `${((100 * sums[number]) / whole).toFixed(2)}%`;
    return el("li", {}, el("span", { class: "who" }, names[number]), el("span", { class: "figure" }, bytes(sums[number])), el("div", { class: "track" }, bar));
  });
  const swatches = new Map(all.flat().map((segment) => [segment.swatch, segment.name]));
  const legend = [...swatches].map(([swatch, name]) => el("li", {}, el("span", { class: `swatch ${swatch}` }), ` ${name}`));
  return el("div", { class: "at-peak" }, el("h3", {}, "Allocated at the peak"), el("ul", { class: "pair" }, ...rows), el("ul", { class: "legend" }, ...legend));
}

/** Differences as bars to the left and to the right of nothing. */
function differences(index: number, title: string, rows: Difference[]): HTMLElement {
  const part = section(`differences-${index}`, title.charAt(0).toUpperCase() + title.slice(1), null);
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.after - row.before)));
  const item = (row: Difference) => {
    const delta = row.after - row.before;
    const way = delta > 0 ? "more" : delta < 0 ? "less" : "same";
    const sign = delta > 0 ? "+" : delta < 0 ? "−" : "±";
    return el(
      "li",
      { class: way, title: `${exact(row.before)} before, ${exact(row.after)} after` },
      el("span", { class: "delta" }, `${sign}${bytes(Math.abs(delta))}`),
      el("span", { class: "change", "aria-hidden": "true" }, el("span", { style: `width:${((50 * Math.abs(delta)) / most).toFixed(2)}%` })),
      el("span", { class: "values" }, `${bytes(row.before)} → ${bytes(row.after)}`),
      el("span", { class: "what" }, row.what),
    );
  };
  if (rows.length === 0) part.append(el("p", { class: "note" }, "no difference"));
  part.append(el("ul", { class: "differences" }, ...rows.slice(0, ROWS).map(item)));
  if (rows.length > ROWS) part.append(el("details", {}, el("summary", {}, `${rows.length - ROWS} smaller differences`), el("ul", { class: "differences" }, ...rows.slice(ROWS).map(item))));
  return part;
}
