// SPDX-License-Identifier: MIT OR Apache-2.0
// The size of the blocks if their lifetimes had been known beforehand, folded away until the reader opens it.

import { AddressPicture } from "../addresses";
import type { PaneContext } from "../context";
import type { Blocks } from "../data";
import { el, prose } from "../dom";
import { bytes, plural } from "../format";
import { button, foldedSection, how } from "../parts";
import { planBars, planFigures } from "../plan";
import { OwnBand, type Change } from "../view";

export class PlanPanel {
  readonly element: HTMLElement | null = null;
  readonly picture: AddressPicture | null = null;
  readonly band: OwnBand;
  private readonly note = el("p", { class: "note" });

  constructor(pane: PaneContext) {
    const { timeline, view, tip } = pane;
    this.band = new OwnBand(() => view.changed("packing"));
    const { plan } = timeline.facts.words;
    if (!plan) return;
    const [id, title, sum] = [pane.id("plan"), "Offline plan", "if all lifetimes had been known beforehand"];
    if (!plan.done) {
      this.element = foldedSection(id, title, sum, () => undefined, el("p", { class: "note" }, ...prose(plan.sentence)));
      return;
    }
    const picture = new AddressPicture(
      timeline,
      view,
      {
        get row() {
          return tip.row;
        },
        set row(row: number | null) {
          tip.row = row;
        },
        block: (block, row, x, y) => tip.planned(block, row, x, y),
        hole: (address, row, _inSegment, restShare, x, y) => tip.unplanned(address, row, restShare, x, y),
        leave: () => tip.leave(),
      },
      pane.colors,
      (block, row) => pane.pickPlanned(block, row),
      "The plan over time: where each block would lie. Arrow keys pan, plus and minus zoom; with Shift they move and zoom in offsets. The figures are above.",
      this.band,
    );
    this.picture = picture;
    this.element = foldedSection(
      id,
      title,
      sum,
      () => {
        picture.surface.fit();
        picture.draw(true);
      },
      planFigures(plan),
      planBars(plan),
      el(
        "div",
        { class: "section-tools" },
        button("zoom out of offsets", "Zoom out of offsets (Shift and -)", () => picture.zoomAddresses(1.6)),
        button("zoom into offsets", "Zoom into offsets (Shift and +)", () => picture.zoomAddresses(0.625)),
        button("show all offsets", "Show all offsets", () => this.band.showAddresses(0, 1)),
      ),
      picture.surface.element,
      el(
        "ul",
        { class: "legend" },
        el("li", {}, "colors as above"),
        el("li", {}, el("span", { class: "swatch hole" }), " free in the plan"),
        el("li", {}, el("span", { class: "swatch rest" }), " covered by smaller blocks"),
      ),
      this.note,
      how(
        "An allocator sees one request after the other. Here all requests and frees of the recording were known beforehand, and every block was given an offset in one arena for each pool: time runs to the right as in the timeline, offsets run down. No two blocks that live at the same time share a byte; a checker that shares nothing with the planner has looked at it.",
        "The lower bound is what lives at the fullest moment: no allocator and no plan can take less. A plan at the bound is the best there is. What the recorded allocator reserved beyond it is the price of not knowing the future, and of rounding.",
      ),
    );
  }

  setBlocks(blocks: Blocks): void {
    if (!blocks.packed) return;
    this.picture?.setBlocks(blocks.packed);
    const left = blocks.facts.plan_rest_blocks;
    if (left > 0) this.note.textContent = `${plural(left, "smaller or shorter-lived block")} (${bytes(blocks.facts.plan_rest_largest)} at most) are not drawn one by one; where the plan puts them is shown in plain grey, as a share of the time.`;
  }

  update(what: Change): void {
    if (what === "range" || what === "packing" || what === "search") this.picture?.draw();
    else if (what === "hover" || what === "moment") this.picture?.drawPointer();
    else if (what === "theme") this.picture?.draw(true);
  }
}
