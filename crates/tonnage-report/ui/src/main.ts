// SPDX-License-Identifier: MIT OR Apache-2.0
// The page: reads its own data, puts up the pictures and keeps them in step.

import { AddressPicture } from "./addresses";
import { Blocks, Part, Timeline, upperBound, type Moment } from "./data";
import { el, palette, type Palette } from "./dom";
import { bytes, count, exact, plural, share } from "./format";
import { Icicle, parts, sorted, type Part as Piece } from "./icicle";
import { planBars, planFigures } from "./plan";
import { raceBars, RaceLines, raceTable } from "./race";
import { Table, type Cell } from "./table";
import { TimelinePicture } from "./timeline";
import { blockDetails, levelsList, plannedDetails, Tip } from "./tip";
import { frames, GROUPINGS, OwnBand, View, type Change, type Grouping } from "./view";

const VERSION = 1;

function how(...paragraphs: string[]): HTMLElement {
  return el("details", { class: "how" }, el("summary", {}, "How to read this"), ...paragraphs.map((text) => el("p", {}, text)));
}

function section(id: string, title: string, sum: HTMLElement | null, tools: HTMLElement[] = []): HTMLElement {
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("div", { class: "section-head" }, el("h2", { id: `${id}-title` }, title), sum, tools.length ? el("div", { class: "section-tools" }, ...tools) : null),
  );
}

/** A button whose spoken name holds what is written on it. */
function button(text: string, label: string, click: () => void): HTMLButtonElement {
  const spoken = label.toLowerCase().includes(text.toLowerCase()) ? label : `${text}: ${label}`;
  return el("button", { type: "button", "aria-label": spoken, title: label, click }, text);
}

class Page {
  private readonly view: View;
  private colors: Palette = palette();
  private blocks: Blocks | null = null;
  private readonly tip: Tip;
  private readonly timelinePicture: TimelinePicture;
  private readonly addressPicture: AddressPicture;
  private readonly icicle: Icicle;
  private raceLines: RaceLines | null = null;
  private packingPicture: AddressPicture | null = null;
  private readonly packingBand = new OwnBand(() => this.view.changed("packing"));
  private readonly packingNote = el("p", { class: "note" });
  private readonly packingSelection = el("div", { class: "selection", "aria-live": "polite" });
  private readonly momentChoice = el("select", { id: "moment-choice" });
  private readonly rangeText = el("span", { class: "range" });
  private readonly search = el("input", { type: "search", id: "search", placeholder: "stack, line, module, tensor", autocomplete: "off", spellcheck: "false" });
  private readonly searchSum = el("p", { class: "note", role: "status" });
  private readonly legend = el("ul", { class: "legend" });
  private readonly grouping = el("select", { id: "grouping", "aria-label": "How parts are grouped (g)", title: "How parts are grouped (g)" });
  private readonly momentSum = el("span", { class: "sum" });
  private readonly addressSum = el("span", { class: "sum" });
  private readonly addressNote = el("p", { class: "note" });
  private readonly selection = el("div", { class: "selection", "aria-live": "polite" });
  private readonly partSelection = el("div", { class: "selection" });
  private readonly blockTable: Table;
  private readonly segmentTable: Table;
  private readonly partTable: Table;
  private readonly findTable: Table;
  private readonly findSection: HTMLElement;
  private readonly help: HTMLDialogElement;
  private blockTableRows: number[] = [];
  private tree: Piece | null = null;
  private momentCells: Cell[][] = [];
  /** Moments, those of note before those of steps. */
  private readonly moments: Moment[];

  constructor(
    private readonly timeline: Timeline,
    private readonly app: HTMLElement,
  ) {
    const view = new View(timeline);
    this.view = view;
    const order = ["out_of_memory", "peak", "second_peak", "mark", "step_peak"];
    this.moments = [...timeline.facts.moments].sort((one, other) => order.indexOf(one.kind) - order.indexOf(other.kind) || one.row - other.row);
    view.read();
    this.applyTheme();
    this.tip = new Tip(timeline, () => view.changed("hover"));
    const tip = this.tip;
    const colors = () => this.colors;
    this.timelinePicture = new TimelinePicture(
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
      colors,
    );
    this.addressPicture = new AddressPicture(
      timeline,
      view,
      tip,
      colors,
      (block, row) => this.pickBlock(block, row),
      "Address space over time: live blocks and holes inside segments. Arrow keys pan, plus and minus zoom; with Shift they move and zoom in addresses. The table below lists the blocks.",
    );
    if (timeline.facts.story.plan?.done) {
      this.packingPicture = new AddressPicture(
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
        colors,
        (block, row) => this.pickPlanned(block, row),
        "The plan over time: where each block would lie. Arrow keys pan, plus and minus zoom; with Shift they move and zoom in offsets. The figures are above.",
        this.packingBand,
      );
    }
    this.icicle = new Icicle(view, tip, (part, path) => this.pickPart(part, path));
    this.blockTable = new Table(
      "Blocks alive at the chosen moment, the largest first",
      [
        { name: "size", kind: "bytes" },
        { name: "category", kind: "text" },
        { name: "known", kind: "text" },
        { name: "module", kind: "text" },
        { name: "tensor", kind: "text" },
        { name: "line", kind: "text" },
        { name: "address", kind: "hex" },
        { name: "born at row", kind: "count" },
      ],
      (row) => this.pickBlock(this.blockTableRows[row], view.moment),
    );
    this.segmentTable = new Table("Segments held at the chosen moment; holes are between the drawn blocks", [
      { name: "address", kind: "hex" },
      { name: "size", kind: "bytes" },
      { name: "handed out", kind: "bytes" },
      { name: "free", kind: "bytes" },
      { name: "holes", kind: "count" },
      { name: "largest hole", kind: "bytes" },
      { name: "blocks", kind: "count" },
      { name: "stream", kind: "hex" },
    ]);
    this.partTable = new Table("Parts of the chosen moment", [
      { name: "part", kind: "text" },
      { name: "what", kind: "text" },
      { name: "bytes", kind: "bytes" },
      { name: "share", kind: "text" },
      { name: "blocks", kind: "count" },
      { name: "category known", kind: "text" },
    ]);
    this.findTable = new Table("Lines with matches, by bytes at the chosen moment", [
      { name: "line", kind: "text" },
      { name: "alive at the moment", kind: "bytes" },
      { name: "blocks then", kind: "count" },
      { name: "blocks in all, of those drawn", kind: "count" },
      { name: "largest", kind: "bytes" },
    ]);
    this.findSection = el("section", { id: "found", hidden: true, "aria-label": "Matches of the search" }, this.searchSum, el("details", {}, el("summary", {}, "Matching lines"), this.findTable.element));
    this.help = this.helpDialog();
    this.build();
    view.onChange((what) => this.update(what));
    window.addEventListener("hashchange", () => {
      view.read();
      this.search.value = view.query;
      this.find();
      this.update("theme");
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update("theme"));
    window.addEventListener("beforeprint", () => {
      document.documentElement.dataset["theme"] = "light";
      this.redraw(true);
    });
    window.addEventListener("afterprint", () => this.update("theme"));
    window.addEventListener("scroll", () => this.tip.leave(), { passive: true });
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => this.icicle.refresh());
  }

  private build(): void {
    const { timeline, view } = this;
    const { facts } = timeline;
    const { story } = facts;
    document.title = `${story.title} – GPU memory`;
    const mark = story.tone === "good" ? "✓ " : story.tone === "bad" ? "✗ " : "";
    const header = el(
      "header",
      { class: "top" },
      el(
        "div",
        { class: "title" },
        el("h1", {}, story.title),
        el("div", { class: "tools" }, button("◐ theme", "Switch between light and dark (t)", () => this.switchTheme()), button("? help", "Keys and help (?)", () => this.help.showModal())),
      ),
      story.verdict ? el("p", { class: `verdict ${story.tone}` }, mark + story.verdict) : null,
      el("dl", { class: "facts" }, ...story.facts.map((fact) => el("div", {}, el("dt", {}, fact.name), el("dd", {}, fact.text)))),
    );
    const tools = el(
      "div",
      { class: "bar-tools", role: "toolbar", "aria-label": "What is shown" },
      el(
        "span",
        { class: "group" },
        el("label", { for: "moment-choice" }, "moment"),
        button("‹", "Previous moment (,)", () => this.stepMoment(-1)),
        this.momentChoice,
        button("›", "Next moment (.)", () => this.stepMoment(1)),
      ),
      el(
        "span",
        { class: "group" },
        button("−", "Zoom out (-)", () => view.zoom(1.6)),
        button("+", "Zoom in (+)", () => view.zoom(0.625, this.zoomCentre())),
        button("whole", "Show the whole recording (0)", () => this.whole()),
        button("step", "Show the step around the chosen moment (s)", () => this.showStep()),
      ),
      el("span", { class: "group search" }, el("label", { for: "search" }, "find"), this.search),
      this.rangeText,
    );
    this.search.value = view.query;
    this.search.addEventListener("input", () => {
      view.query = this.search.value.trim();
      this.find();
    });
    this.fillMoments();
    this.momentChoice.addEventListener("change", () => {
      view.choose(Number(this.momentChoice.value));
      view.reveal();
    });
    const timelineSection = section("timeline", "Timeline", this.momentSum, [
      button("↕ scale", "Scale to the peak or to the capacity (y)", () => this.switchScale()),
    ]);
    timelineSection.append(
      this.timelinePicture.overview.element,
      this.timelinePicture.surface.element,
      this.legend,
      how(
        "Bytes on the device after every row of the recording, stacked by what they are for. The strip on top shows what the program was doing. Above the coloured bands, hatched, is what the allocator holds from the driver without having handed it out; the dark line is the sum of both, the dashed red line the capacity of the device.",
        `The recording has ${count(facts.rows)} rows in ${count(timeline.start.length)} stretches. Where a column of pixels holds many rows it shows the highest moment among them, a real moment with its real parts, and the dotted line shows how far down it goes in between. No peak is ever lost.`,
        "Drag to pan, Ctrl or ⌘ with the wheel to zoom, Shift and drag to zoom into a range, click to choose a moment. The same by keys: arrows, + and −, and , and . for moments.",
      ),
      this.momentTable(),
    );
    const addressSection = section("addresses", "Address space", this.addressSum, [
      button("− y", "Zoom out in addresses (Shift and -)", () => this.addressPicture.zoomAddresses(1.6)),
      button("+ y", "Zoom in on addresses (Shift and +)", () => this.addressPicture.zoomAddresses(0.625)),
      button("all", "Show all addresses", () => view.showAddresses(0, 1)),
    ]);
    addressSection.append(
      this.addressPicture.surface.element,
      el(
        "ul",
        { class: "legend" },
        el("li", {}, "colours as above"),
        el("li", {}, el("span", { class: "swatch hole" }), " held, not handed out: a hole"),
        el("li", {}, el("span", { class: "swatch rest" }), " covered by smaller blocks"),
        el("li", {}, "blank: not held from the driver"),
      ),
      this.addressNote,
      this.selection,
      how(
        "Time runs to the right as in the timeline, addresses run down. Every range of addresses that the allocator ever held from the driver is a strip, its size written at the left. Coloured is what was handed out, hatched what was held and free: a large request fails when no hatched piece is large enough, even if there is enough of it in total.",
        "Each column shows the same moment as the column of the timeline above it. Click a block to see its stack. Shift and drag to zoom into a rectangle.",
      ),
      el("details", {}, el("summary", {}, "Table: blocks alive at the chosen moment"), this.blockTable.element),
      el("details", {}, el("summary", {}, "Table: segments and their holes"), this.segmentTable.element),
    );
    const { grouping } = this;
    grouping.append(...GROUPINGS.map(([value, text]) => el("option", { value }, text)));
    grouping.addEventListener("change", () => {
      view.grouping = grouping.value as Grouping;
      view.changed("grouping");
    });
    const momentSection = section("moment", "Who holds it", el("span", { class: "sum", id: "moment-when" }), [grouping]);
    momentSection.append(
      this.icicle.trail,
      this.icicle.element,
      this.partSelection,
      how(
        "Everything in use at the chosen moment, as wide as it is large: first what it is for, then the module in whose forward pass it was requested (a * stands for the numbers of layers), the source line, the tensor. Click a part to see it at full width; Esc goes back out.",
        "A category is exact where torch itself named the tensor (parameters, gradients, optimizer state of a dry run), and inferred from phases and stacks elsewhere.",
      ),
      el("details", {}, el("summary", {}, "Table: the same parts"), this.partTable.element),
    );
    this.app.replaceChildren(header, el("main", {}, tools, this.findSection, ...this.findings(), timelineSection, addressSection, momentSection, ...this.race(), ...this.plan(), ...this.unknown()), this.footer(), this.help);
    this.updateTexts();
  }

  private findings(): HTMLElement[] {
    const { findings } = this.timeline.facts.story;
    if (findings.length === 0) return [];
    const part = section("findings", "Findings", null);
    part.append(
      el(
        "ul",
        { class: "findings" },
        ...findings.map((finding) => el("li", {}, el("strong", {}, el("code", {}, finding.code), ` ${finding.title}`), el("p", {}, finding.text))),
      ),
    );
    return [part];
  }

  private race(): HTMLElement[] {
    const { race } = this.timeline.facts.story;
    if (race.length === 0) return [];
    const part = section("race", "Allocator race", el("span", { class: "sum" }, "what each would have held from the driver"));
    part.append(raceBars(race, this.timeline));
    if (race.some((racer) => racer.series.length > 1)) {
      this.raceLines = new RaceLines(race, this.view, () => this.colors);
      part.append(this.raceLines.surface.element);
    }
    part.append(
      how(
        "The requests and frees of the recording, served by other allocators and settings. The full bar is the most each held from the driver; the solid part was handed out at that moment, the hatched part was not. The dashed red line is the capacity of the device; the grey start of a bar is the context.",
        "PyTorch's allocator is replayed exactly, event for event; the others are approximations and say so.",
      ),
      el("details", {}, el("summary", {}, "Table: allocators"), raceTable(race).element),
    );
    return [part];
  }

  /** What the blocks would take if their lives had been known beforehand. */
  private plan(): HTMLElement[] {
    const { plan } = this.timeline.facts.story;
    if (!plan) return [];
    const picture = this.packingPicture;
    const tools = picture
      ? [
          button("− y", "Zoom out in offsets (Shift and -)", () => picture.zoomAddresses(1.6)),
          button("+ y", "Zoom in on offsets (Shift and +)", () => picture.zoomAddresses(0.625)),
          button("all", "Show all offsets", () => this.packingBand.showAddresses(0, 1)),
        ]
      : [];
    const part = section("plan", "Offline plan", el("span", { class: "sum" }, "if all lives had been known beforehand"), tools);
    if (!picture) {
      part.append(el("p", { class: "note" }, plan.sentence));
      return [part];
    }
    part.append(
      planFigures(plan),
      planBars(plan),
      picture.surface.element,
      el(
        "ul",
        { class: "legend" },
        el("li", {}, "colours as above"),
        el("li", {}, el("span", { class: "swatch hole" }), " free in the plan"),
        el("li", {}, el("span", { class: "swatch rest" }), " covered by smaller blocks"),
      ),
      this.packingNote,
      this.packingSelection,
      how(
        "An allocator sees one request after the other. Here all requests and frees of the recording were known beforehand, and every block was given an offset in one arena for each pool: time runs to the right as in the timeline, offsets run down. No two blocks that live at the same time share a byte; a checker that shares nothing with the planner has looked at it.",
        "The lower bound is what lives at the fullest moment: no allocator and no plan can take less. A plan at the bound is the best there is. What the recorded allocator reserved beyond it is the price of not knowing the future, and of rounding.",
      ),
    );
    return [part];
  }

  private pickPlanned(block: number, row: number): void {
    const { blocks, packingPicture } = this;
    if (!blocks || !packingPicture) return;
    this.packingSelection.replaceChildren();
    if (block < 0) return;
    packingPicture.selected = block;
    this.packingSelection.append(el("div", { class: "picked" }, ...plannedDetails(this.timeline, blocks, block, 60)));
    if (row !== this.view.moment) this.view.choose(row);
  }

  private unknown(): HTMLElement[] {
    const { unknown } = this.timeline.facts.story;
    const { facts } = this.timeline;
    const lines = [...unknown];
    if (facts.phases_left_out > 0) lines.push(`${plural(facts.phases_left_out, "short phase")} that are not drawn`);
    if (facts.steps_left_out > 0) lines.push(`the peaks of ${plural(facts.steps_left_out, "step")} with lower ones are not in the list of moments`);
    if (facts.reserved_at_least) lines.push("what the allocator held before the recording began; reserved is at least what was handed out");
    if (lines.length === 0) return [];
    const part = section("unknown", "What this does not show", null);
    part.append(el("ul", { class: "unknown" }, ...lines.map((line) => el("li", {}, line))));
    return [part];
  }

  private footer(): HTMLElement {
    const { facts } = this.timeline;
    return el(
      "footer",
      {},
      `${facts.story.producer} · ${count(facts.rows)} rows, ${count(facts.blocks)} blocks, ${count(facts.drawn)} of them drawn one by one · sizes are binary: 1 GiB is 1,073,741,824 bytes · this file needs no network and sends nothing`,
    );
  }

  private helpDialog(): HTMLDialogElement {
    const keys: [string[], string][] = [
      [["←", "→"], "pan"],
      [["+", "−"], "zoom in and out; with Shift in the address space or the plan, addresses or offsets"],
      [["0"], "the whole recording"],
      [["s"], "the step around the chosen moment"],
      [[",", "."], "previous and next moment"],
      [["p"], "the peak"],
      [["/"], "search stacks, lines, modules and tensors"],
      [["g"], "how parts are grouped: by module or by call stack"],
      [["y"], "scale to the peak or to the capacity"],
      [["t"], "light or dark"],
      [["Esc"], "close, clear the search, go back out"],
      [["?"], "this help"],
    ];
    const dialog = el("dialog", { "aria-labelledby": "help-title" });
    dialog.append(
      el("h2", { id: "help-title" }, "Keys"),
      el("dl", { class: "keys" }, ...keys.flatMap(([names, text]) => [el("dt", {}, ...names.flatMap((name, index) => [index ? " " : "", el("kbd", {}, name)])), el("dd", {}, text)])),
      el("p", {}, "With the mouse: drag pans, Ctrl or ⌘ with the wheel zooms, Shift and drag zooms into a range, a click chooses a moment or a block. The address of the page keeps what is shown, so a link to it shows the same."),
      button("close", "Close the help", () => dialog.close()),
    );
    return dialog;
  }

  private fillMoments(): void {
    const option = (moment: Moment) =>
      el("option", { value: moment.row }, `${moment.kind === "out_of_memory" ? "out of memory" : moment.label.slice(0, 40)}, ${bytes(moment.allocated)}, row ${count(moment.row)}`);
    const groups = (["of note", "of steps"] as const).map((label) => {
      const steps = label === "of steps";
      const group = el("optgroup", { label });
      group.append(...this.moments.filter((moment) => (moment.kind === "step_peak") === steps).map(option));
      return group;
    });
    this.momentChoice.replaceChildren(...groups.filter((group) => group.children.length > 0), el("option", { value: -1, hidden: true }, ""));
  }

  private momentTable(): HTMLElement {
    const { timeline } = this;
    const { facts } = timeline;
    const table = new Table(
      "Moments worth looking at, with their exact parts",
      [
        { name: "moment", kind: "text" },
        { name: "row", kind: "count" },
        { name: "where", kind: "text" },
        { name: "allocated", kind: "bytes" },
        ...(timeline.hasReserved ? [{ name: "reserved", kind: "bytes" as const }] : []),
        ...timeline.present.map((category) => ({ name: facts.categories[category], kind: "bytes" as const })),
      ],
      (row) => {
        this.view.choose(Number(this.momentCells[row][1]));
        this.view.reveal();
      },
    );
    this.momentCells = this.moments.map((moment) => {
      const levels = timeline.levelsNear(moment.row);
      return [
        moment.label,
        moment.row,
        timeline.place(moment.row),
        moment.allocated,
        ...(timeline.hasReserved ? [moment.reserved] : []),
        ...timeline.present.map((category) => levels.byCategory[category]),
      ];
    });
    table.set(this.momentCells);
    return el("details", {}, el("summary", {}, "Table: moments"), table.element);
  }

  /** Takes in the second part of the data. */
  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    this.tip.blocks = blocks;
    this.addressPicture.setBlocks(blocks);
    if (blocks.packed) {
      this.packingPicture?.setBlocks(blocks.packed);
      const left = blocks.facts.plan_rest_blocks;
      if (left > 0) this.packingNote.textContent = `${plural(left, "smaller or shorter-lived block")} (${bytes(blocks.facts.plan_rest_largest)} at most) are not drawn one by one; where the plan puts them is shown in plain grey, as a share of the time.`;
    }
    const { facts } = blocks;
    const left = [];
    if (facts.rest_blocks > 0) {
      left.push(`${plural(facts.rest_blocks, "smaller or shorter-lived block")} of together ${exact(facts.rest_bytes)} (each counted once, ${bytes(facts.rest_largest)} at most) are not drawn one by one; where they lay is shown in plain grey, as a share of the time.`);
    }
    if (facts.segments_left_out > 0) left.push(`${plural(facts.segments_left_out, "segment")} are not drawn.`);
    if (blocks.length === 0) left.push("The recording has no blocks.");
    this.addressNote.textContent = left.join(" ");
    this.find();
    this.showMoment();
  }

  private update(what: Change): void {
    switch (what) {
      case "range":
        this.timelinePicture.drawOverview();
        this.timelinePicture.draw();
        this.addressPicture.draw();
        this.packingPicture?.draw();
        this.raceLines?.draw();
        this.updateRange();
        break;
      case "addresses":
        this.addressPicture.draw();
        break;
      case "packing":
        this.packingPicture?.draw();
        break;
      case "hover":
        this.timelinePicture.drawPointer();
        this.addressPicture.drawPointer();
        this.packingPicture?.drawPointer();
        break;
      case "moment":
        this.timelinePicture.drawOverview();
        this.timelinePicture.draw();
        this.addressPicture.draw();
        this.packingPicture?.drawPointer();
        this.updateTexts();
        this.showMoment();
        break;
      case "search":
        this.timelinePicture.draw();
        this.addressPicture.draw();
        this.packingPicture?.draw();
        this.showMoment();
        break;
      case "grouping":
        this.showMoment();
        break;
      case "theme":
        this.applyTheme();
        this.redraw();
        break;
    }
  }

  private redraw(always = false): void {
    this.colors = palette();
    this.timelinePicture.redrawAll();
    this.addressPicture.draw(always);
    this.packingPicture?.draw(always);
    this.raceLines?.draw();
    this.updateTexts();
    this.showMoment();
  }

  private applyTheme(): void {
    const dark = this.view.theme === "system" ? window.matchMedia("(prefers-color-scheme: dark)").matches : this.view.theme === "dark";
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
    this.colors = palette();
  }

  private switchTheme(): void {
    this.view.theme = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
    this.view.changed("theme");
  }

  private switchScale(): void {
    this.view.toCapacity = !this.view.toCapacity;
    this.view.changed("range");
  }

  private switchGrouping(): void {
    const now = GROUPINGS.findIndex(([grouping]) => grouping === this.view.grouping);
    this.view.grouping = GROUPINGS[(now + 1) % GROUPINGS.length][0];
    this.view.changed("grouping");
  }

  private updateRange(): void {
    const { timeline, view } = this;
    this.rangeText.textContent =
      view.from === 0 && view.to === timeline.rows
        ? `all ${count(timeline.rows)} rows`
        : `rows ${count(Math.round(view.from))} to ${count(Math.round(view.to))}`;
  }

  private updateTexts(): void {
    const { timeline, view } = this;
    const { facts } = timeline;
    const levels = timeline.levelsNear(view.moment);
    this.updateRange();
    const moment = this.moments.find((one) => one.row === view.moment);
    this.momentSum.textContent = `${moment ? `${moment.label}: ` : ""}${bytes(levels.allocated)} allocated${timeline.hasReserved ? `, ${facts.reserved_at_least ? "at least " : ""}${bytes(levels.reserved)} reserved` : ""}, ${this.tip.when(levels.row)}`;
    const { options } = this.momentChoice;
    if (moment) {
      this.momentChoice.selectedIndex = this.moments.indexOf(moment);
    } else {
      const other = options[options.length - 1];
      other.textContent = `row ${count(view.moment)}, ${bytes(levels.allocated)}`;
      this.momentChoice.selectedIndex = options.length - 1;
    }
    const items: HTMLElement[] = timeline.present.map((category) =>
      el("li", {}, el("span", { class: `swatch c${category}` }), ` ${facts.categories[category]} `, el("span", { class: "value" }, bytes(levels.byCategory[category]))),
    );
    if (facts.context > 0) items.unshift(el("li", {}, el("span", { class: "swatch context" }), " context ", el("span", { class: "value" }, bytes(facts.context))));
    if (timeline.hasReserved) {
      items.push(el("li", {}, el("span", { class: "swatch hole" }), " held, not handed out ", el("span", { class: "value" }, bytes(levels.reserved - levels.allocated))));
      items.push(el("li", {}, el("span", { class: "swatch reserved" }), " reserved and context"));
    }
    if (facts.capacity !== null) items.push(el("li", {}, el("span", { class: "swatch capacity" }), " capacity"));
    items.push(el("li", {}, el("span", { class: "swatch low" }), " lowest within the column"));
    this.legend.replaceChildren(...items);
  }

  private showMoment(): void {
    const { blocks, timeline, view } = this;
    const when = document.getElementById("moment-when");
    const levels = timeline.levelsNear(view.moment);
    if (when) when.textContent = this.tip.when(levels.row);
    this.grouping.value = view.grouping;
    if (!blocks) return;
    const tree = parts(timeline, blocks, levels, view.grouping, view.found);
    this.tree = tree;
    this.icicle.set(tree);
    this.fillParts();
    const alive: number[] = [];
    for (let block = 0; block < blocks.length && blocks.born[block] <= levels.row; block++) {
      if (levels.row < blocks.died[block] && (!view.found || view.found[block])) alive.push(block);
    }
    alive.sort((one, other) => blocks.bytes[other] - blocks.bytes[one]);
    this.addressSum.textContent = `${plural(alive.length, "drawn block")}${view.found ? " with matches" : ""} alive at the chosen moment`;
    // More than anyone reads; sorting more would hold up the page.
    this.blockTableRows = alive.slice(0, 5000);
    this.blockTable.set(
      this.blockTableRows.map((block) => [
        blocks.bytes[block],
        timeline.facts.categories[blocks.category[block]],
        blocks.isExact[block] ? "exact" : "inferred",
        blocks.text(blocks.module[block]),
        [blocks.text(blocks.name[block]), blocks.text(blocks.shape[block])].filter(Boolean).join(" "),
        blocks.lineOf(blocks.stack[block]),
        blocks.address[block],
        blocks.born[block],
      ]),
    );
    this.fillSegments(blocks, levels.row);
    if (view.found) this.summarise();
  }

  private fillSegments(blocks: Blocks, row: number): void {
    const alive: number[] = [];
    for (let block = 0; block < blocks.length && blocks.born[block] <= row; block++) {
      if (row < blocks.died[block]) alive.push(block);
    }
    alive.sort((one, other) => blocks.address[one] - blocks.address[other]);
    const starts = Float64Array.from(alive, (block) => blocks.address[block]);
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
      for (let index = upperBound(starts, from - 1); index < alive.length && starts[index] < to; index++) {
        hole(starts[index]);
        const end = Math.min(to, starts[index] + blocks.bytes[alive[index]]);
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

  private fillParts(): void {
    const { tree } = this;
    if (!tree) return;
    const rows: Cell[][] = [];
    const walk = (part: Piece, path: string): void => {
      for (const one of sorted(part)) {
        if (rows.length >= 2000) return;
        const name = path ? `${path} › ${one.name}` : one.name;
        const known = one.blocks === 0 ? "" : one.exact === one.blocks ? "exact" : one.exact === 0 ? "inferred" : "in part";
        rows.push([name, one.kind === "rest" ? "smaller blocks" : one.kind, one.bytes, share(one.bytes, tree.bytes), one.blocks || null, known]);
        walk(one, name);
      }
    };
    walk(tree, "");
    this.partTable.set(rows);
  }

  private pickBlock(block: number, row: number): void {
    const { blocks } = this;
    if (!blocks || block < 0 || block === undefined) {
      this.selection.replaceChildren();
      return;
    }
    this.addressPicture.selected = block;
    this.selection.replaceChildren(el("div", { class: "picked" }, ...blockDetails(this.timeline, blocks, block, 60)));
    if (row !== this.view.moment) this.view.choose(row);
    this.addressPicture.draw();
  }

  private pickPart(part: Piece, path: Piece[]): void {
    const { blocks } = this;
    this.partSelection.replaceChildren();
    if (blocks && part.example >= 0 && (part.kind === "line" || part.kind === "tensor" || part.kind === "frame")) {
      this.partSelection.append(
        el("p", { class: "note" }, `${path.slice(1).map((one) => one.name).join(" › ")}: ${exact(part.bytes)} in ${plural(part.blocks, "block")}; the largest:`),
        ...blockDetails(this.timeline, blocks, part.example, 60),
      );
    } else if (part.kind === "root") {
      this.partSelection.append(levelsList(this.timeline, this.timeline.levelsNear(this.view.moment)));
    }
  }

  private find(): void {
    const { blocks, view } = this;
    if (!blocks) return;
    view.found = view.query ? blocks.matches(view.query) : null;
    this.timelinePicture.sumFound(blocks.born, blocks.died, blocks.bytes, view.found);
    this.findSection.hidden = !view.found;
    view.changed("search");
  }

  private summarise(): void {
    const { blocks, view } = this;
    if (!blocks || !view.found) return;
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
    this.searchSum.textContent =
      all === 0
        ? `Nothing drawn one by one matches “${view.query}”.`
        : `“${view.query}”: ${plural(alive, "block")} of together ${exact(aliveBytes)} alive at the chosen moment; ${plural(all, "match")}${all === 1 ? "" : ""} among the drawn blocks in all. The blue line in the timeline is their sum.`.replace("matchs", "matches");
    this.findTable.set([...lines].map(([line, sums]) => [line, ...sums] as Cell[]).sort((one, other) => Number(other[1]) - Number(one[1]) || Number(other[3]) - Number(one[3])));
  }

  private zoomCentre(): number {
    const { view } = this;
    return view.moment >= view.from && view.moment < view.to ? view.moment : (view.from + view.to) / 2;
  }

  private whole(): void {
    this.view.show(0, this.timeline.rows);
  }

  private showStep(): void {
    const { timeline, view } = this;
    const phase = timeline.phaseAt(view.moment);
    if (phase < 0) {
      const width = timeline.rows / 20;
      view.show(view.moment - width / 2, view.moment + width / 2);
      return;
    }
    const step = timeline.phaseStep[phase];
    let [first, last] = [phase, phase];
    while (first > 0 && timeline.phaseStep[first - 1] === step) first--;
    while (last + 1 < timeline.phase.length && timeline.phaseStep[last + 1] === step) last++;
    const [from, to] = [timeline.phaseFrom[first], timeline.phaseTo[last]];
    view.show(from - (to - from) * 0.02, to + (to - from) * 0.02);
  }

  private stepMoment(by: number): void {
    const rows = [...new Set(this.moments.map((moment) => moment.row))].sort((one, other) => one - other);
    const { view } = this;
    const next = by > 0 ? rows.find((row) => row > view.moment) : rows.filter((row) => row < view.moment).at(-1);
    if (next === undefined) return;
    view.choose(next);
    view.reveal();
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    const typing = target.matches("input, select, textarea");
    if (event.key === "Escape") {
      this.tip.leave();
      if (target === this.search || this.view.query) {
        this.search.value = "";
        this.view.query = "";
        this.find();
        this.search.blur();
      } else if (!this.help.open) {
        this.icicle.up();
      }
      return;
    }
    // A table that is wider than the screen scrolls by the arrows.
    if (event.key.startsWith("Arrow") && target.closest(".table")) return;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    const picture = [this.addressPicture, this.packingPicture].find((one) => event.shiftKey && target === one?.surface.canvas);
    const band = picture === this.packingPicture ? this.packingBand : this.view;
    const { view } = this;
    switch (event.key) {
      case "ArrowLeft":
        view.pan(-0.12);
        break;
      case "ArrowRight":
        view.pan(0.12);
        break;
      case "ArrowUp":
      case "ArrowDown": {
        if (!picture) return;
        const shift = (event.key === "ArrowUp" ? -0.1 : 0.1) * (band.bottom - band.top);
        band.showAddresses(band.top + shift, band.bottom + shift);
        break;
      }
      case "+":
      case "=":
        if (picture) picture.zoomAddresses(0.625);
        else view.zoom(0.625, this.zoomCentre());
        break;
      case "-":
      case "_":
        if (picture) picture.zoomAddresses(1.6);
        else view.zoom(1.6, this.zoomCentre());
        break;
      case "0":
      case "Home":
        this.whole();
        break;
      case "s":
        this.showStep();
        break;
      case ",":
        this.stepMoment(-1);
        break;
      case ".":
        this.stepMoment(1);
        break;
      case "p": {
        const first = this.timeline.firstMoment();
        if (first) view.choose(first.row);
        view.reveal();
        break;
      }
      case "/":
        this.search.focus();
        this.search.select();
        break;
      case "g":
        this.switchGrouping();
        break;
      case "y":
        this.switchScale();
        break;
      case "t":
        this.switchTheme();
        break;
      case "?":
        this.help.showModal();
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  /** Draws the timeline for the first time. */
  firstPicture(): void {
    this.timelinePicture.overview.fit();
    this.timelinePicture.surface.fit();
    this.addressPicture.surface.fit();
    this.packingPicture?.surface.fit();
    this.timelinePicture.redrawAll();
    this.addressPicture.draw();
    this.raceLines?.surface.fit();
    this.raceLines?.draw();
  }
}

async function start(): Promise<void> {
  const app = document.getElementById("app");
  if (!app) return;
  const timeline = new Timeline(await Part.unpack("data-timeline"));
  if (timeline.facts.version !== VERSION) throw new Error("this page and its data are of different versions");
  const page = new Page(timeline, app);
  page.firstPicture();
  performance.mark("first-picture");
  // The blocks stand behind this program in the file and may still be on their way.
  if (document.readyState === "loading") await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  page.setBlocks(new Blocks(await Part.unpack("data-blocks"), timeline.rows));
  performance.mark("all-pictures");
  (window as unknown as { tonnage: unknown }).tonnage = { frames };
}

start().catch((error: unknown) => {
  const reason = error instanceof Error ? error.message : String(error);
  document.getElementById("app")?.append(el("p", { role: "alert", class: "verdict bad" }, `The pictures cannot be drawn: ${reason}`));
  throw error;
});
