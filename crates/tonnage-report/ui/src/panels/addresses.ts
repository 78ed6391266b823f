// SPDX-License-Identifier: MIT OR Apache-2.0
// The address space with its tables: where blocks lay, where holes were, and which blocks keep the holes.

import { AddressPicture } from "../addresses";
import type { PaneContext } from "../context";
import { upperBound, type Blocks } from "../data";
import { el } from "../dom";
import { bytes, exact, plural } from "../format";
import { alive } from "../groups";
import { folded, how, iconButton, section } from "../parts";
import { Table, type Cell } from "../table";
import type { Change } from "../view";

/** More than anyone reads; sorting more would hold up the page. */
const MAX_ROWS = 5000;

export class AddressPanel {
  readonly element: HTMLElement;
  readonly picture: AddressPicture;
  private readonly sum = el("span", { class: "sum" });
  private readonly note = el("p", { class: "note" });
  private readonly pinned = el("li", { hidden: true }, el("span", { class: "swatch pin" }), " keeps the gap beside it from being given back");
  private readonly blockTable: Table;
  private readonly segmentTable: Table;
  private rows: number[] = [];
  private blocks: Blocks | null = null;

  constructor(private readonly pane: PaneContext) {
    const { timeline, view, tip } = pane;
    this.picture = new AddressPicture(
      timeline,
      view,
      tip,
      pane.colors,
      (block, row) => pane.pickBlock(block, row),
      "Address space over time: live blocks and gaps inside segments. Arrow keys pan, plus and minus zoom; with Shift they move and zoom in addresses. The table below lists the blocks.",
    );
    this.blockTable = new Table(
      "Blocks alive at the chosen moment, the largest first",
      [
        { name: "size", kind: "bytes" },
        { name: "category", kind: "text" },
        { name: "known", kind: "text" },
        { name: "held by", kind: "text" },
        { name: "module", kind: "text" },
        { name: "tensor", kind: "text" },
        { name: "line", kind: "text" },
        { name: "address", kind: "hex" },
        { name: "made at event", kind: "count" },
      ],
      (row) => pane.pickBlock(this.rows[row], view.moment),
    );
    this.segmentTable = new Table("Segments at the chosen moment; gaps are between the drawn blocks", [
      { name: "address", kind: "hex" },
      { name: "size", kind: "bytes" },
      { name: "in blocks", kind: "bytes" },
      { name: "free", kind: "bytes" },
      { name: "gaps", kind: "count" },
      { name: "largest gap", kind: "bytes" },
      { name: "blocks", kind: "count" },
      { name: "stream", kind: "hex" },
    ]);
    this.element = section(pane.id("addresses"), "Address space", this.sum, [
      el(
        "div",
        { class: "icons", role: "group", "aria-label": "Zoom of addresses" },
        iconButton("+", "Zoom into addresses (Shift and +)", () => this.picture.zoomAddresses(0.625)),
        iconButton("−", "Zoom out of addresses (Shift and -)", () => this.picture.zoomAddresses(1.6)),
        iconButton("⤢", "Show all addresses", () => view.showAddresses(0, 1)),
      ),
    ]);
    this.element.append(
      this.picture.surface.element,
      el(
        "ul",
        { class: "legend" },
        el("li", {}, "colors as above"),
        this.pinned,
        el("li", {}, el("span", { class: "swatch hole" }), " a gap: cached by PyTorch, free"),
        el("li", {}, el("span", { class: "swatch rest" }), " covered by smaller blocks"),
        el("li", {}, "blank: not obtained from the driver"),
      ),
      this.note,
      how(
        "Time runs to the right as above, addresses run down. Every range of addresses that PyTorch ever obtained from the driver is a strip; its size and its segments are written at the left, those of equal neighbors together. Coloured is what was handed out, hatched what was cached and free: a large request fails when no hatched piece is large enough, even if there is enough of it in total.",
        "Red arrows point at blocks that keep a segment with free memory in it from being given back to the driver.",
        "Drag to pan, Ctrl or ⌘ with the wheel to zoom, with Shift in addresses; Shift and drag zooms into both. A click on a block shows its whole stack.",
      ),
      folded("Table: blocks alive at the chosen moment", this.blockTable.element),
      folded("Table: segments and their gaps", this.segmentTable.element),
    );
  }

  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    this.pinned.hidden = this.pane.view.pins.length === 0;
    this.picture.setBlocks(blocks);
    const { facts } = blocks;
    const left = [];
    if (facts.rest_blocks > 0) {
      left.push(`${plural(facts.rest_blocks, "smaller or shorter-lived block")} of together ${exact(facts.rest_bytes)} (each counted once, ${bytes(facts.rest_largest)} at most) are not drawn one by one; where they lay is shown in plain grey, as a share of the time.`);
    }
    if (facts.segments_left_out > 0) left.push(`${plural(facts.segments_left_out, "segment")} are not drawn.`);
    if (blocks.length === 0) left.push("The recording has no blocks.");
    this.note.textContent = left.join(" ");
    this.show();
  }

  select(block: number): void {
    this.picture.selected = block;
    this.picture.draw();
  }

  update(what: Change): void {
    switch (what) {
      case "range":
      case "addresses":
        this.picture.draw();
        break;
      case "hover":
        this.picture.drawPointer();
        break;
      case "moment":
      case "search":
        this.picture.draw();
        this.show();
        break;
      case "theme":
        this.picture.draw(true);
        break;
    }
  }

  private show(): void {
    const { blocks } = this;
    if (!blocks) return;
    const { timeline, view } = this.pane;
    const { row } = timeline.levelsNear(view.moment);
    const now = alive(blocks, row);
    const found = now.filter((block) => !view.found || view.found[block]);
    found.sort((one, other) => blocks.bytes[other] - blocks.bytes[one]);
    this.sum.textContent = `${plural(found.length, "drawn block")}${view.found ? " of the selection" : ""} alive at the chosen moment`;
    this.rows = found.slice(0, MAX_ROWS);
    this.blockTable.set(
      this.rows.map((block) => [
        blocks.bytes[block],
        timeline.facts.categories[blocks.category[block]],
        blocks.isExact[block] ? "exact" : "inferred",
        blocks.text(blocks.holder[block]),
        blocks.text(blocks.module[block]),
        [blocks.text(blocks.name[block]), blocks.text(blocks.shape[block])].filter(Boolean).join(" "),
        blocks.lineOf(blocks.stack[block]),
        blocks.address[block],
        blocks.born[block] + 1,
      ]),
    );
    this.segments(blocks, now, row);
  }

  private segments(blocks: Blocks, now: number[], row: number): void {
    now.sort((one, other) => blocks.address[one] - blocks.address[other]);
    const starts = Float64Array.from(now, (block) => blocks.address[block]);
    const rows: Cell[][] = [];
    for (let segment = 0; segment < blocks.segmentBorn.length; segment++) {
      if (row < blocks.segmentBorn[segment] || row >= blocks.segmentDied[segment]) continue;
      const from = blocks.segmentAddress[segment];
      const to = from + blocks.segmentBytes[segment];
      let [at, used, holes, largest, inside] = [from, 0, 0, 0, 0];
      const hole = (until: number) => {
        if (until <= at) return;
        holes += 1;
        largest = Math.max(largest, until - at);
      };
      for (let index = upperBound(starts, from - 1); index < now.length && starts[index] < to; index++) {
        hole(starts[index]);
        const end = Math.min(to, starts[index] + blocks.bytes[now[index]]);
        used += end - starts[index];
        at = Math.max(at, end);
        inside += 1;
      }
      hole(to);
      rows.push([from, to - from, used, to - from - used, holes, largest, inside, blocks.segmentStream[segment]]);
    }
    rows.sort((one, other) => Number(other[3]) - Number(one[3]));
    this.segmentTable.set(rows);
  }
}
