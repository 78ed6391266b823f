// SPDX-License-Identifier: MIT OR Apache-2.0
// The holders of the bytes at the chosen moment: a bar and a list with equal blocks merged, then a picture of the parts.

import type { PaneContext } from "../context";
import type { Blocks, Levels } from "../data";
import { el, prose } from "../dom";
import { bytes, count, exact, plural, share } from "../format";
import { alive, group, type Group, groupLabel, groupPlace } from "../groups";
import { Icicle, parts, sorted, type Part } from "../icicle";
import { folded, how, section } from "../parts";
import { stackBar, type Segment } from "../stack";
import { Table, type Cell } from "../table";
import { GROUPINGS, type Change, type Grouping } from "../view";

const FIRST = 6;
const MORE = 40;
/** Segments of the bar: more are thinner than a pixel. */
const SEGMENTS = 120;

export class HoldersPanel {
  readonly element: HTMLElement;
  readonly icicle: Icicle;
  private readonly when: HTMLElement;
  private readonly bar = el("div", {});
  private readonly list = el("ul", { class: "holders" });
  private readonly grouping: HTMLSelectElement;
  private readonly table: Table;
  private blocks: Blocks | null = null;
  private shown = FIRST;

  constructor(private readonly pane: PaneContext) {
    const { view } = pane;
    this.when = el("span", { class: "sum" });
    this.grouping = el("select", { id: pane.id("grouping"), "aria-label": "How parts are grouped (g)", title: "How parts are grouped (g)" });
    this.grouping.append(...GROUPINGS.map(([value, text]) => el("option", { value }, text)));
    this.grouping.addEventListener("change", () => {
      view.grouping = this.grouping.value as Grouping;
      view.changed("grouping");
    });
    this.icicle = new Icicle(view, pane.tip, (part, path) => this.pick(part, path));
    this.table = new Table("Parts of the chosen moment", [
      { name: "part", kind: "text" },
      { name: "what", kind: "text" },
      { name: "bytes", kind: "bytes" },
      { name: "share", kind: "text" },
      { name: "blocks", kind: "count" },
      { name: "category known", kind: "text" },
    ]);
    this.element = section(pane.id("moment"), "Holders", this.when);
    this.element.append(
      this.bar,
      this.list,
      el("div", { class: "section-head parts-head" }, el("h3", {}, "The same as parts"), this.grouping),
      this.icicle.trail,
      this.icicle.element,
      how(
        "Everything in use at the chosen moment, as a bar up to the capacity and as a list in the same order. In the list, blocks that one line made for one purpose and one holder are one entry, and equal blocks are counted; a holder is the variable, list or module that Python itself named when it was asked. A click marks the blocks in the other pictures.",
        "Below, the same as parts, as wide as they are large: first what it is for, then the module in whose forward pass it was requested (a * stands for the numbers of layers), the source line, the tensor. Click a part to see it at full width; Esc goes back out.",
        "A category is exact where torch itself named the tensor (parameters, gradients, optimizer state of a dry run), and inferred from phases and stacks elsewhere.",
      ),
      folded("Table: the same parts", this.table.element),
    );
  }

  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    this.show();
  }

  update(what: Change): void {
    if (what === "moment" || what === "search" || what === "grouping" || what === "theme") this.show();
  }

  private show(): void {
    const { timeline, view, tip } = this.pane;
    const levels = timeline.levelsNear(view.moment);
    this.when.textContent = tip.when(levels.row);
    this.grouping.value = view.grouping;
    if (!this.blocks) return;
    const tree = parts(timeline, this.blocks, levels, view.grouping, view.found);
    this.icicle.set(tree);
    this.fillTable(tree);
    this.fillList(this.blocks, levels);
  }

  private fillList(blocks: Blocks, levels: Levels): void {
    const { timeline, view } = this.pane;
    const groups = group(blocks, alive(blocks, levels.row));
    const pinning = new Set(view.pins);
    const segments: Segment[] = groups.slice(0, SEGMENTS).map((of) => ({ swatch: `c${of.category}`, name: groupLabel(blocks, of), bytes: of.bytes }));
    const others = groups.slice(SEGMENTS);
    if (others.length > 0) segments.push({ swatch: "rest", name: `${count(others.length)} smaller`, bytes: sum(others) });
    const row = (swatch: string, size: number, label: string, place: string): HTMLElement[] => [
      el("span", { class: `swatch ${swatch}` }),
      el("span", { class: "size" }, bytes(size)),
      el("span", { class: "label" }, label),
      el("span", { class: "place" }, ...prose(place)),
    ];
    const items = groups.slice(0, this.shown).map((of) => {
      const pins = of.blocks.filter((block) => pinning.has(block)).length;
      const found = !view.found || of.blocks.some((block) => view.found?.[block]);
      const button = el("button", { type: "button", class: `holder${found ? "" : " dim"}`, title: exact(of.bytes) }, ...row(`c${of.category}`, of.bytes, groupLabel(blocks, of), groupPlace(timeline, of)));
      if (pins > 0) button.querySelector(".label")?.append(el("span", { class: "tag bad" }, pins === of.blocks.length ? "pin gaps" : `${count(pins)} of them pin gaps`));
      button.addEventListener("click", () => this.pane.pickGroup(of));
      return el("li", {}, button);
    });
    const still = (swatch: string, size: number, label: string, place: string) => {
      segments.push({ swatch, name: label, bytes: size });
      items.push(el("li", { class: "holder still", title: exact(size) }, ...row(swatch, size, label, place)));
    };
    const left = groups.length - this.shown;
    if (left > 0) {
      const rest = groups.slice(this.shown);
      const more = el("button", { type: "button", class: "link" }, `show ${count(Math.min(left, MORE))} more of ${count(left)}, together ${bytes(sum(rest))}`);
      more.addEventListener("click", () => {
        this.shown += MORE;
        this.show();
      });
      items.push(el("li", { class: "more-groups" }, more));
    }
    const unlisted = levels.allocated - sum(groups);
    if (unlisted > 0) still("rest", unlisted, "smaller blocks", "the sum is exact; they are not listed one by one in a file of this size");
    if (timeline.hasReserved && levels.reserved > levels.allocated) still("hole", levels.reserved - levels.allocated, "cached by PyTorch", "obtained from the driver and free");
    if (timeline.facts.context > 0) still("context", timeline.facts.context, "context", "CUDA's own");
    this.list.replaceChildren(...items);
    this.bar.replaceChildren(stackBar(segments, timeline.facts.capacity));
  }

  private fillTable(tree: Part): void {
    const rows: Cell[][] = [];
    const walk = (part: Part, path: string): void => {
      for (const one of sorted(part)) {
        if (rows.length >= 2000) return;
        const name = path ? `${path} › ${one.name}` : one.name;
        const known = one.blocks === 0 ? "" : one.exact === one.blocks ? "exact" : one.exact === 0 ? "inferred" : "in part";
        rows.push([name, one.kind === "rest" ? "smaller blocks" : one.kind, one.bytes, share(one.bytes, tree.bytes), one.blocks || null, known]);
        walk(one, name);
      }
    };
    walk(tree, "");
    this.table.set(rows);
  }

  private pick(part: Part, path: Part[]): void {
    if (!this.blocks || part.members.length === 0) return;
    const title = path.slice(1).map((one) => one.name).join(" › ");
    this.pane.pickMembers(title, `${plural(part.blocks, "block")} of the chosen moment`, part.members);
  }
}

function sum(groups: Group[]): number {
  return groups.reduce((total, of) => total + of.bytes, 0);
}
