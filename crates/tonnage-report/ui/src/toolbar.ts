// SPDX-License-Identifier: MIT OR Apache-2.0
// What is shown of a pane: which pane, which moment, how far zoomed in, and what is searched for.

import type { Moment } from "./data";
import { el } from "./dom";
import { bytes, count, event, exact, plural } from "./format";
import type { Pane } from "./pane";
import { folded, iconButton } from "./parts";
import { Table, type Cell } from "./table";

export class Toolbar {
  readonly element: HTMLElement;
  readonly found: HTMLElement;
  readonly search = el("input", { type: "search", id: "search", placeholder: "line, module, tensor, holder", autocomplete: "off", spellcheck: "false" });
  private readonly moment = el("select", { id: "moment-choice" });
  private readonly range = el("span", { class: "range" });
  private readonly status = el("p", { class: "note", role: "status" });
  private readonly lines: Table;
  private readonly paneChoice: HTMLSelectElement | null;

  constructor(
    private readonly pane: () => Pane,
    names: string[],
    choosePane: (number: number) => void,
    private readonly searched: () => void,
  ) {
    const view = () => this.pane().view;
    this.paneChoice = names.length > 1 ? el("select", { id: "pane-choice" }, ...names.map((name, number) => el("option", { value: number }, name || `part ${number + 1}`))) : null;
    this.paneChoice?.addEventListener("change", () => choosePane(Number(this.paneChoice?.value)));
    this.search.addEventListener("input", () => {
      view().query = this.search.value.trim();
      this.find();
    });
    this.moment.addEventListener("change", () => {
      view().choose(Number(this.moment.value));
      view().reveal();
      const chosen = this.pane().moments.find((moment) => moment.row === view().moment);
      if (chosen?.kind === "out_of_memory") this.pane().pickFailure();
    });
    this.element = el(
      "div",
      { class: "bar-tools", role: "toolbar", "aria-label": "What is shown" },
      this.paneChoice ? el("span", { class: "group" }, el("label", { for: "pane-choice" }, "show"), this.paneChoice) : null,
      el(
        "span",
        { class: "group" },
        el("label", { for: "moment-choice" }, "at"),
        this.moment,
        iconButton("‹", "Previous moment (,)", () => this.stepMoment(-1)),
        iconButton("›", "Next moment (.)", () => this.stepMoment(1)),
      ),
      el("span", { class: "group search" }, el("label", { for: "search" }, "find"), this.search),
      this.range,
    );
    // A sticky element below it, and the target of a link, keeps clear of it, in however many lines it is.
    new ResizeObserver(() => {
      const covers = getComputedStyle(this.element).position === "sticky";
      document.documentElement.style.setProperty("--bar", `${covers ? this.element.offsetHeight : 0}px`);
    }).observe(this.element);
    this.lines = new Table("Lines with matches, by bytes at the chosen moment", [
      { name: "line", kind: "text" },
      { name: "alive at the moment", kind: "bytes" },
      { name: "blocks then", kind: "count" },
      { name: "blocks in all, of those drawn", kind: "count" },
      { name: "largest", kind: "bytes" },
    ]);
    this.found = el("section", { id: "found", hidden: true, "aria-label": "Matches of the search" }, this.status, folded("Matching lines", this.lines.element));
  }

  /** Shows another pane. */
  attach(number: number): void {
    const { view } = this.pane();
    if (this.paneChoice) this.paneChoice.value = String(number);
    this.search.value = view.query;
    this.fillMoments();
    this.update();
  }

  private fillMoments(): void {
    const { timeline, moments } = this.pane();
    const option = (moment: Moment) => {
      const name = moment.kind === "out_of_memory" ? "out of memory" : moment.label.slice(0, 40);
      const where = timeline.place(moment.row) || event(moment.row);
      return el("option", { value: moment.row }, moment.kind === "step_peak" ? `${name}, ${bytes(moment.allocated)}` : `${name}, ${bytes(moment.allocated)}, ${where}`);
    };
    const groups = (["of note", "of steps"] as const).map((label) => {
      const list = el("optgroup", { label });
      list.append(...moments.filter((moment) => (moment.kind === "step_peak") === (label === "of steps")).map(option));
      return list;
    });
    this.moment.replaceChildren(...groups.filter((list) => list.children.length > 0), el("option", { value: -1, hidden: true }, ""));
  }

  /** Says which moment and which part is shown. */
  update(): void {
    const { timeline, view, moments } = this.pane();
    const levels = timeline.levelsNear(view.moment);
    const known = moments.findIndex((moment) => moment.row === view.moment);
    const { options } = this.moment;
    if (known >= 0) {
      this.moment.value = String(view.moment);
    } else {
      const other = options[options.length - 1];
      other.textContent = `${timeline.place(view.moment) || event(view.moment)}, ${bytes(levels.allocated)}`;
      this.moment.selectedIndex = options.length - 1;
    }
    this.range.textContent = this.rangeText();
  }

  private rangeText(): string {
    const { timeline, view } = this.pane();
    const steps = (from: number, to: number): string => {
      if (!timeline.hasPhases) return "";
      const at = (row: number) => Math.max(0, timeline.phaseAt(Math.min(timeline.rows - 1, Math.max(0, Math.floor(row)))));
      const begin = at(from);
      let end = at(to - 1);
      // Time between passes counts to the step it follows.
      while (end > begin && timeline.facts.phases[timeline.phase[end]] === "other") end--;
      const [first, last] = [timeline.phaseStep[begin], timeline.phaseStep[end]];
      return first === last ? `step ${count(first)}, ` : `steps ${count(first)} to ${count(last)}, `;
    };
    if (view.from === 0 && view.to === timeline.rows) return `all of it: ${steps(0, timeline.rows)}${plural(timeline.rows, "event")}`;
    return `${steps(view.from, view.to)}events ${count(Math.round(view.from) + 1)} to ${count(Math.round(view.to))}`;
  }

  /** Looks for what is typed. */
  find(): void {
    this.searched();
    this.pane().find();
    this.found.hidden = !this.pane().view.query;
    this.summarise();
  }

  endSearch(): void {
    this.search.value = "";
    this.pane().view.query = "";
    this.found.hidden = true;
  }

  /** Says what was found, if anything is searched for. */
  summarise(): void {
    const { blocks, view } = this.pane();
    if (!blocks || !view.found || !view.query) return;
    const lines = new Map<string, [number, number, number, number]>();
    let [alive, aliveBytes, all] = [0, 0, 0];
    for (let block = 0; block < blocks.length; block++) {
      if (!view.found[block]) continue;
      all += 1;
      const line = blocks.lineOf(blocks.stack[block]);
      const sums = lines.get(line) ?? [0, 0, 0, 0];
      if (blocks.isAlive(block, view.moment)) {
        sums[0] += blocks.bytes[block];
        sums[1] += 1;
        alive += 1;
        aliveBytes += blocks.bytes[block];
      }
      sums[2] += 1;
      sums[3] = Math.max(sums[3], blocks.bytes[block]);
      lines.set(line, sums);
    }
    this.status.textContent =
      all === 0
        ? `Nothing drawn one by one matches “${view.query}”.`
        : `“${view.query}”: ${plural(alive, "block")} of together ${exact(aliveBytes)} alive at the chosen moment; ${count(all)} ${all === 1 ? "match" : "matches"} among the drawn blocks in all. The blue line in the timeline is their sum.`;
    this.lines.set([...lines].map(([line, sums]) => [line, ...sums] as Cell[]).sort((one, other) => Number(other[1]) - Number(one[1]) || Number(other[3]) - Number(one[3])));
  }

  stepMoment(by: number): void {
    const { view, moments } = this.pane();
    const rows = [...new Set(moments.map((moment) => moment.row))].sort((one, other) => one - other);
    const next = by > 0 ? rows.find((row) => row > view.moment) : rows.filter((row) => row < view.moment).at(-1);
    if (next === undefined) return;
    view.choose(next);
    view.reveal();
  }
}
