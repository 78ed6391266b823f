// SPDX-License-Identifier: MIT OR Apache-2.0
// The timeline with its legend, and the moments worth looking at as a table.

import type { PaneContext } from "../context";
import type { Blocks, Moment } from "../data";
import { el } from "../dom";
import { bytes, count } from "../format";
import { button, folded, how, iconButton, section } from "../parts";
import { Table, type Cell } from "../table";
import { TimelinePicture } from "../timeline";
import type { Change } from "../view";

export class TimelinePanel {
  readonly element: HTMLElement;
  readonly picture: TimelinePicture;
  private readonly sum = el("span", { class: "sum" });
  private readonly legend = el("ul", { class: "legend" });
  private readonly scale: HTMLButtonElement;
  private momentCells: Cell[][] = [];
  private blocks: Blocks | null = null;
  /** The name of the cause, once its line is drawn. */
  private cause = "";

  constructor(
    private readonly pane: PaneContext,
    least = 0,
  ) {
    const { timeline, view, tip } = pane;
    const { facts } = timeline;
    this.picture = new TimelinePicture(
      timeline,
      view,
      {
        get row() {
          return tip.row;
        },
        set row(row: number | null) {
          tip.row = row;
        },
        timeline: (stretch, low, x, y) => tip.timelineAt(stretch, low, x, y),
        leave: () => tip.leave(),
      },
      pane.colors,
      least,
      () => pane.pickUnused(),
    );
    this.scale = button("scale to the capacity", "Scale to the peak or to the capacity (y)", () => view.switchScale());
    const zoom = el(
      "div",
      { class: "icons", role: "group", "aria-label": "Zoom" },
      iconButton("+", "Zoom in (+)", () => view.zoom(0.625, view.centre)),
      iconButton("−", "Zoom out (-)", () => view.zoom(1.6)),
      iconButton("↔", "Zoom to the step around the chosen moment (s)", () => view.showStep()),
      iconButton("⤢", "Show all of the recording (0)", () => view.show(0, timeline.rows)),
    );
    this.element = section(pane.id("timeline"), "Memory over time", this.sum, facts.capacity !== null ? [this.scale, zoom] : [zoom]);
    this.element.append(
      this.picture.overview.surface.element,
      this.picture.surface.element,
      this.legend,
      how(
        "Bytes on the GPU after every event of the recording, stacked by what they are for. Below stand the steps and what the program did in them: forward, backward, optimizer. Above the coloured bands, hatched, is what PyTorch has cached; the dark line is the sum of both, the dashed red line the capacity of the GPU. A request that failed is the outlined red block on top. A thick dark line is the sum of the blocks of the first finding, from the context upwards.",
        "A striped part of a band is memory that is alive after its last use. Only blocks are striped whose last use a dry run recorded, and without which the program continues; other blocks may be unused, too. A click on the stripes shows the holders.",
        `The recording has ${count(facts.rows)} events in ${count(timeline.start.length)} stretches. Where a column of pixels holds many events it shows the highest moment among them, a real moment with its real parts, and the dotted line shows how far down it goes in between. No peak is ever lost.`,
        "Drag to pan, Ctrl or ⌘ with the wheel to zoom, Shift and drag to zoom into a range, click to choose a moment. The same by keys: arrows, + and −, and , and . for moments.",
      ),
      this.momentTable(),
    );
    this.updateTexts();
  }

  private momentTable(): HTMLElement {
    const { timeline, view, moments } = this.pane;
    const { facts } = timeline;
    const table = new Table(
      "Moments worth looking at, with their exact parts",
      [
        { name: "moment", kind: "text" },
        { name: "where", kind: "text" },
        { name: "event", kind: "count" },
        { name: "allocated", kind: "bytes" },
        ...(timeline.hasReserved ? [{ name: "reserved", kind: "bytes" as const }] : []),
        ...timeline.present.map((category) => ({ name: facts.categories[category], kind: "bytes" as const })),
      ],
      (row) => {
        view.choose(Number(this.momentCells[row][2]) - 1);
        view.reveal();
      },
    );
    this.momentCells = moments.map((moment: Moment) => {
      const levels = timeline.levelsNear(moment.row);
      return [
        moment.label,
        timeline.place(moment.row),
        moment.row + 1,
        moment.allocated,
        ...(timeline.hasReserved ? [moment.reserved] : []),
        ...timeline.present.map((category) => levels.byCategory[category]),
      ];
    });
    table.set(this.momentCells);
    return folded("Table: moments", table.element);
  }

  /** Marks the blocks of the cause. */
  markCause(blocks: Blocks, members: readonly number[], label: string): void {
    this.cause = label;
    this.picture.markCause(blocks.born, blocks.died, blocks.bytes, members, label);
    this.picture.draw();
    this.updateTexts();
  }

  /** Hatches memory that stays after its last use. */
  markUnused(blocks: Blocks): void {
    if (!blocks.unusedFrom.some((from) => from < Infinity)) return;
    this.blocks = blocks;
    this.picture.markUnused(blocks);
    this.picture.draw();
    this.updateTexts();
  }

  update(what: Change): void {
    switch (what) {
      case "range":
      case "moment":
        this.picture.overview.draw();
        this.picture.draw();
        this.updateTexts();
        break;
      case "hover":
        this.picture.drawPointer();
        break;
      case "search":
        this.picture.draw();
        break;
      case "theme":
        this.picture.redrawAll();
        this.updateTexts();
        break;
    }
  }

  private updateTexts(): void {
    const { timeline, view, moments, tip } = this.pane;
    const { facts } = timeline;
    const levels = timeline.levelsNear(view.moment);
    const moment = moments.find((one) => one.row === view.moment);
    this.scale.textContent = view.toCapacity ? "scale to the peak" : "scale to the capacity";
    this.scale.setAttribute("aria-label", `${this.scale.textContent} (y)`);
    this.sum.textContent = `${moment ? `${moment.label}: ` : ""}${bytes(levels.allocated)} allocated${timeline.hasReserved ? `, ${facts.reserved_at_least ? "at least " : ""}${bytes(levels.reserved)} reserved` : ""}; ${tip.when(levels.row)}`;
    const item = (swatch: string, name: string, value?: number) =>
      el("li", {}, el("span", { class: `swatch ${swatch}` }), ` ${name} `, value === undefined ? null : el("span", { class: "value" }, bytes(value)));
    const items = timeline.present.map((category) => item(`c${category}`, facts.categories[category], levels.byCategory[category]));
    if (facts.context > 0) items.unshift(item("context", "context", facts.context));
    if (timeline.hasReserved) {
      items.push(item("hole", "cached by PyTorch", levels.reserved - levels.allocated));
      items.push(item("reserved", "reserved by PyTorch, with the context"));
    }
    if (facts.capacity !== null) items.push(item("capacity", "capacity"));
    if (this.blocks) {
      const { blocks } = this;
      const size = blocks.unusedAt(levels.row).reduce((total, block) => total + blocks.bytes[block], 0);
      const show = el("button", { type: "button", class: "link unused-link", title: "Show the holders of this memory (u)", click: () => this.pane.pickUnused() }, "alive, never used again");
      items.push(el("li", {}, el("span", { class: "swatch unused" }), " ", show, " ", el("span", { class: "value" }, bytes(size))));
    }
    if (this.cause) items.push(item("cause", `${this.cause}, the sum of its blocks`));
    if (moments.some((one) => one.refused)) items.push(item("refused", "the request that failed"));
    items.push(item("low", "lowest within the column"));
    this.legend.replaceChildren(...items);
  }
}
