// SPDX-License-Identifier: MIT OR Apache-2.0
// What is selected, with its whole stack. It stays beside the pictures until something else is selected.

import type { Blocks, Timeline } from "../data";
import { el, prose } from "../dom";
import { bytes, count, exact, plural } from "../format";
import { equal, group, type Group, groupLabel, groupPlace } from "../groups";
import { blockDetails, plannedDetails, stackList } from "../tip";

const KINDS = 12;
const FRAMES = 400;

export class SelectionPanel {
  readonly element: HTMLElement;
  private readonly body = el("div", { class: "selection-body" });
  private readonly close: HTMLButtonElement;

  constructor(id: string, cleared: () => void) {
    this.close = el("button", { type: "button", title: "Clear the selection (Esc)" }, "clear");
    this.close.addEventListener("click", cleared);
    this.element = el(
      "aside",
      { id, class: "selection", "aria-label": "Selection", "aria-live": "polite", tabindex: 0 },
      el("div", { class: "section-head" }, el("h2", {}, "Selection"), el("div", { class: "section-tools" }, this.close)),
      this.body,
    );
    this.clear();
  }

  clear(): void {
    this.element.classList.add("empty");
    this.close.hidden = true;
    this.body.replaceChildren(el("p", { class: "note" }, "Click a finding, a line of “Holders” or a block: its figures and its whole stack stay here."));
  }

  /** Whether the shown block was not requested: then it does not lie over the pictures where the screen is narrow. */
  set unasked(unasked: boolean) {
    this.element.classList.toggle("unasked", unasked);
  }

  private fill(...children: (HTMLElement | null)[]): void {
    this.element.classList.remove("empty", "unasked");
    this.close.hidden = false;
    this.body.replaceChildren(...children.filter((child): child is HTMLElement => child !== null));
    this.body.scrollTop = 0;
  }

  block(timeline: Timeline, blocks: Blocks, block: number, planned = false): void {
    const details = planned ? plannedDetails : blockDetails;
    this.fill(...details(timeline, blocks, block, FRAMES));
  }

  /** Several blocks that belong together, with the stack of the largest. */
  members(title: string, text: string, blocks: Blocks, members: readonly number[], leftOut = 0): void {
    const kinds = equal(blocks, members);
    let [sum, largest] = [0, members[0] ?? -1];
    for (const block of members) {
      sum += blocks.bytes[block];
      if (blocks.bytes[block] > blocks.bytes[largest]) largest = block;
    }
    const list = el("ul", { class: "kinds" }, ...kinds.slice(0, KINDS).map((kind) => el("li", {}, el("span", {}, kind.label), el("span", { class: "value" }, bytes(kind.bytes)))));
    if (kinds.length > KINDS) {
      const rest = kinds.slice(KINDS);
      const blocksLeft = rest.reduce((total, kind) => total + kind.blocks.length, 0);
      list.append(el("li", { class: "note" }, el("span", {}, `${plural(blocksLeft, "other block")}`), el("span", { class: "value" }, bytes(rest.reduce((total, kind) => total + kind.bytes, 0)))));
    }
    this.fill(
      el("h3", {}, ...prose(title)),
      text ? el("p", {}, ...prose(text)) : null,
      el("p", { class: "note" }, `${exact(sum)} in ${plural(members.length, "block")}${leftOut > 0 ? `; ${count(leftOut)} more are not drawn one by one` : ""}`),
      list,
      largest >= 0 ? el("h4", {}, members.length > 1 ? "Stack of the largest" : "Stack") : null,
      largest >= 0 ? stackList(blocks, blocks.stack[largest], FRAMES) : null,
    );
  }

  /** Blocks that stay in memory after their last use, by holder and line. */
  unused(timeline: Timeline, blocks: Blocks, members: readonly number[]): void {
    const groups = group(blocks, members);
    const sum = (all: Group[]) => all.reduce((total, of) => total + of.bytes, 0);
    const row = (text: string, size: number) => el("li", {}, el("span", {}, ...prose(text)), el("span", { class: "value" }, bytes(size)));
    const list = el("ul", { class: "kinds apart" }, ...groups.slice(0, KINDS).map((of) => row(groupPlace(timeline, of), of.bytes)));
    const rest = groups.slice(KINDS);
    if (rest.length > 0) list.append(row(plural(rest.length, "smaller entry", "smaller entries"), sum(rest)));
    const largest = groups[0]?.blocks[0] ?? -1;
    this.fill(
      el("h3", {}, "Alive, never used again"),
      el("p", {}, members.length > 0 ? "The GPU does not use these blocks again before the program frees them. Each entry is a holder and a line." : "No block is known to stay unused at this moment."),
      members.length > 0 ? el("p", { class: "note" }, `${exact(sum(groups))} in ${plural(members.length, "block")}`) : null,
      list,
      largest >= 0 ? el("h4", {}, "Stack of the largest") : null,
      largest >= 0 ? stackList(blocks, blocks.stack[largest], FRAMES) : null,
    );
  }

  /** The request that could not be served. */
  failure(label: string, blocks: Blocks): void {
    this.fill(el("h3", {}, label), el("h4", {}, "Stack of the request that failed"), stackList(blocks, blocks.facts.failure_stack, FRAMES));
  }

  group(timeline: Timeline, blocks: Blocks, of: Group): void {
    const { facts } = timeline;
    const exactBlocks = of.blocks.filter((block) => blocks.isExact[block]).length;
    const known = exactBlocks === of.blocks.length ? "as torch reported" : exactBlocks === 0 ? "inferred" : "in part as torch reported";
    const text = [
      of.holder ? `held by ${of.holder}${blocks.holderLine[of.blocks[0]] ? ` at ${blocks.text(blocks.holderLine[of.blocks[0]])}` : ""}` : "",
      `${facts.categories[of.category]} (${known})`,
      of.module ? `in ${of.module}` : "",
      `made at ${of.line}`,
    ].filter(Boolean);
    this.members(groupLabel(blocks, of), text.join("; "), blocks, of.blocks);
  }
}
