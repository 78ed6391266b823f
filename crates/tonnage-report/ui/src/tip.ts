// SPDX-License-Identifier: MIT OR Apache-2.0
// The box beside the pointer: exact figures of what is under it, how they are known, and the stack.

import type { Blocks, Levels, Timeline } from "./data";
import { placeText, upperBound } from "./data";
import { el, prose } from "./dom";
import { bytes, count, duration, event, exact, plural, share } from "./format";
import type { Part } from "./icicle";

const FRAMES = 9;

export class Tip {
  row: number | null = null;
  blocks: Blocks | null = null;
  private readonly box: HTMLElement;

  constructor(
    id: string,
    private readonly timeline: Timeline,
    private readonly changed: () => void,
  ) {
    this.box = el("div", { id, class: "tip", role: "tooltip", hidden: true });
    document.body.append(this.box);
  }

  /** No longer needed. */
  close(): void {
    this.box.remove();
  }

  leave(): void {
    this.box.hidden = true;
    if (this.row !== null) {
      this.row = null;
      this.changed();
    }
  }

  private show(x: number, y: number, ...children: (Node | null)[]): void {
    this.box.replaceChildren(...children.filter((child): child is Node => child !== null));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const [wide, tall] = [document.documentElement.clientWidth, window.innerHeight];
    const left = x + 16 + width < wide ? x + 16 : Math.max(4, Math.min(x - width - 16, wide - width - 4));
    const top = Math.max(4, Math.min(y + 14, tall - height - 4));
    this.box.style.transform = `translate(${left}px, ${top}px)`;
  }

  when(row: number): string {
    const time = this.timeline.timeAt(row);
    const place = this.timeline.place(row);
    return [place, event(row), time === null ? "" : `≈ ${duration(time)}`].filter(Boolean).join(" · ");
  }

  timelineAt(stretch: number, low: number, x: number, y: number): void {
    const { timeline } = this;
    const levels = timeline.highOf(stretch);
    const lowest = timeline.lowTotal[low];
    const length = timeline.lengthOf(stretch);
    const note =
      length > 1 || lowest !== levels.allocated
        ? `the highest moment here; the lowest is ${exact(lowest)}`
        : "every event is shown here";
    this.show(x, y, el("h3", {}, this.when(levels.row)), levelsList(timeline, levels), el("p", { class: "note" }, note));
  }


  block(block: number, row: number, x: number, y: number): void {
    if (!this.blocks) return;
    this.show(x, y, ...blockDetails(this.timeline, this.blocks, block, FRAMES), el("p", { class: "note" }, `${this.when(row)} · click to see the whole stack`));
  }

  planned(block: number, row: number, x: number, y: number): void {
    if (!this.blocks) return;
    this.show(x, y, ...plannedDetails(this.timeline, this.blocks, block, FRAMES), el("p", { class: "note" }, `${this.when(row)} · click to see the whole stack`));
  }

  unplanned(address: number, row: number, restShare: number, x: number, y: number): void {
    const { blocks } = this;
    const place = blocks?.packed ? offsetIn(this.timeline, blocks.packed, address) : "";
    this.show(
      x,
      y,
      el("h3", {}, "free in the plan"),
      el("p", {}, place),
      restShare > 0 && blocks
        ? el("p", {}, `about ${share(restShare, 1)} of this spot is taken by smaller blocks that are not drawn one by one (at most ${bytes(blocks.facts.plan_rest_largest)} each)`)
        : null,
      el("p", { class: "note" }, this.when(row)),
    );
  }

  hole(address: number, row: number, inSegment: boolean, restShare: number, x: number, y: number): void {
    const rest = this.blocks?.facts;
    this.show(
      x,
      y,
      el("h3", {}, inSegment ? "a gap: cached by PyTorch, free" : "not obtained from the driver"),
      el("p", {}, `address 0x${Math.floor(address).toString(16)}`),
      restShare > 0 && rest
        ? el("p", {}, `about ${share(restShare, 1)} of this spot was covered by smaller blocks that are not drawn one by one (at most ${bytes(rest.rest_largest)} each)`)
        : null,
      el("p", { class: "note" }, this.when(row)),
    );
  }

  part(part: Part, path: Part[], whole: number, x: number, y: number): void {
    const { blocks } = this;
    const known = part.blocks === 0 ? "" : part.exact === part.blocks ? "exact: torch named them" : part.exact === 0 ? "inferred" : `${count(part.exact)} named by torch, the others inferred`;
    this.show(
      x,
      y,
      el("h3", {}, part.name),
      el("p", {}, `${exact(part.bytes)} · ${share(part.bytes, whole)}${part.blocks ? ` · ${plural(part.blocks, "block")}` : ""}`),
      path.length > 2 ? el("p", { class: "note" }, path.slice(1, -1).map((one) => one.name).join(" › ")) : null,
      known ? el("p", { class: "note" }, `category ${known}`) : null,
      part.kind === "rest" ? el("p", { class: "note" }, "the sum is exact; these blocks are too small to be listed in a file of this size") : null,
      blocks && part.example >= 0 && (part.kind === "line" || part.kind === "tensor") ? stackList(blocks, blocks.stack[part.example], FRAMES) : null,
    );
  }
}

export function levelsList(timeline: Timeline, levels: Levels): HTMLElement {
  const list = el("table", { class: "levels" });
  const add = (name: string, value: number, key: string) => {
    list.append(
      el("tr", {}, el("td", {}, el("span", { class: `swatch ${key}` })), el("th", {}, name), el("td", {}, bytes(value)), el("td", {}, count(value))),
    );
  };
  for (const category of [...timeline.present].reverse()) {
    if (levels.byCategory[category] > 0) add(timeline.facts.categories[category], levels.byCategory[category], `c${category}`);
  }
  add("allocated", levels.allocated, "none");
  if (timeline.hasReserved) {
    add("cached by PyTorch", levels.reserved - levels.allocated, "hole");
    add("reserved", levels.reserved, "none");
  }
  const { context, capacity } = timeline.facts;
  if (context > 0) add("context", context, "context");
  if (capacity !== null) {
    const used = Math.max(levels.reserved, levels.allocated) + context;
    add(used <= capacity ? "left of the capacity" : "over the capacity", Math.abs(capacity - used), "none");
  }
  return list;
}

export function blockDetails(timeline: Timeline, blocks: Blocks, block: number, frames: number): HTMLElement[] {
  const { facts } = timeline;
  const name = blocks.text(blocks.name[block]);
  const shape = blocks.text(blocks.shape[block]);
  const module = blocks.text(blocks.module[block]);
  const category = blocks.category[block];
  const when = (row: number) => [timeline.place(row), event(row)].filter(Boolean).join(", ");
  const died = blocks.died[block] >= facts.rows ? "never freed" : `freed at ${when(blocks.died[block])}`;
  const list = el("dl", { class: "details" });
  const add = (term: string, text: string) => {
    if (text) list.append(el("dt", {}, term), el("dd", {}, ...prose(text)));
  };
  const known = blocks.isExact[block] ? "exact: torch named it" : "inferred from phases and stack";
  add("category", `${facts.categories[category]} (${known})`);
  add("tensor", [name, shape].filter(Boolean).join(" "));
  add("module", module);
  add("held by", [blocks.text(blocks.holder[block]), blocks.text(blocks.holderLine[block])].filter(Boolean).join(" at "));
  add("made at", when(blocks.born[block]));
  add("until", died);
  add("requested", exact(blocks.bytes[block] - blocks.spare[block]));
  add("address", `0x${blocks.address[block].toString(16)}${blocks.streamHandle[blocks.stream[block]] ? `, stream 0x${blocks.streamHandle[blocks.stream[block]].toString(16)}` : ""}`);
  return [
    el("h3", {}, el("span", { class: `swatch c${category}` }), ` ${exact(blocks.bytes[block])}`),
    list,
    stackList(blocks, blocks.stack[block], frames),
  ];
}

/** An offset of the plan, with its pool where there are several. */
function offsetIn(timeline: Timeline, packed: Blocks, address: number): string {
  const pools = timeline.facts.words.plan?.pools ?? [];
  const range = Math.max(0, upperBound(packed.rangeAddress, address) - 1);
  const offset = Math.max(0, Math.floor(address - packed.rangeAddress[range]));
  return `offset ${exact(offset)}${pools.length > 1 && pools[range] ? `, pool ${pools[range]}` : ""}`;
}

/** A block with its place in the plan. */
export function plannedDetails(timeline: Timeline, blocks: Blocks, block: number, frames: number): HTMLElement[] {
  const { packed } = blocks;
  const details = blockDetails(timeline, blocks, block, frames);
  if (packed) details.splice(1, 0, el("p", {}, `planned at ${offsetIn(timeline, packed, packed.address[block])}, with ${exact(packed.bytes[block])}`));
  return details;
}

export function stackList(blocks: Blocks, stack: number, most: number): HTMLElement {
  const places = blocks.places(stack);
  if (places.length === 0) return el("p", { class: "note" }, "no stack recorded");
  const list = el("ol", { class: "stack" });
  for (const place of places.slice(0, most)) {
    list.append(el("li", { class: place.own ? "own" : null }, el("code", {}, placeText(place)), ` ${place.function}`));
  }
  if (places.length > most) list.append(el("li", { class: "note" }, `${count(places.length - most)} more outside`));
  return list;
}
