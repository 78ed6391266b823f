// SPDX-License-Identifier: MIT OR Apache-2.0
// One process on one device: its data, what is looked at of it, and the panels that show it and keep in step.

import type { PaneContext } from "./context";
import { Blocks, type Moment, type Timeline } from "./data";
import { palette, type Palette } from "./dom";
import { group, type Group } from "./groups";
import { AddressPanel } from "./panels/addresses";
import { AllocatorsPanel } from "./panels/allocators";
import { HoldersPanel } from "./panels/holders";
import { PlanPanel } from "./panels/plan";
import type { SelectionPanel } from "./panels/selection";
import { TimelinePanel } from "./panels/timeline";
import { unknownPanel } from "./panels/unknown";
import { Tip } from "./tip";
import { View, type Change } from "./view";

export interface PaneOptions {
  /** Its number on the page. */
  number: number;
  /** Before every id, so that two panes can stand on one page. */
  prefix: string;
  /** The least range of the vertical axis. */
  least: number;
  /** Whether the address of the page keeps what is looked at. */
  kept: boolean;
  selection: SelectionPanel;
  /** Told after anything changed. */
  changed?: (what: Change) => void;
  /** Told when something was selected in a picture, in place of what was before. */
  picked?: () => void;
  /** The blocks of which findings pin holes. */
  pinning: (finding: number) => boolean;
  /** The finding that is the cause, which the timeline marks. */
  cause: { finding: number; label: string } | null;
}

export class Pane implements PaneContext {
  readonly view: View;
  readonly tip: Tip;
  readonly moments: Moment[];
  readonly elements: HTMLElement[];
  readonly timelinePanel: TimelinePanel;
  readonly holders: HoldersPanel;
  readonly addresses: AddressPanel;
  readonly allocators: AllocatorsPanel;
  readonly plan: PlanPanel;
  blocks: Blocks | null = null;
  private palette: Palette = palette();

  constructor(
    readonly timeline: Timeline,
    private readonly options: PaneOptions,
  ) {
    this.view = new View(timeline, options.kept ? options.number : null);
    const order = ["out_of_memory", "peak", "second_peak", "mark", "step_peak"];
    this.moments = [...timeline.facts.moments].sort((one, other) => order.indexOf(one.kind) - order.indexOf(other.kind) || one.row - other.row);
    this.view.read();
    this.tip = new Tip(this.id("tip"), timeline, () => this.view.changed("hover"));
    this.timelinePanel = new TimelinePanel(this, options.least);
    this.holders = new HoldersPanel(this);
    this.addresses = new AddressPanel(this);
    this.allocators = new AllocatorsPanel(this);
    this.plan = new PlanPanel(this);
    const unknown = unknownPanel(this);
    const all = [this.timelinePanel.element, this.holders.element, this.addresses.element, this.allocators.element, this.plan.element, unknown];
    this.elements = all.filter((element): element is HTMLElement => element !== null);
    this.view.onChange((what) => this.update(what));
  }

  readonly colors = (): Palette => this.palette;

  id(name: string): string {
    return this.options.prefix + name;
  }

  /** Takes in the second part of the data. */
  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    this.tip.blocks = blocks;
    this.view.pins = [...blocks.marked].filter(([finding]) => this.options.pinning(finding)).flatMap(([, members]) => members);
    const { cause } = this.options;
    const members = cause ? blocks.marked.get(cause.finding) : undefined;
    if (cause && members && members.length > 0) this.timelinePanel.markCause(blocks, members, cause.label);
    this.timelinePanel.markUnused(blocks);
    if (this.view.query) this.find();
    this.holders.setBlocks(blocks);
    this.addresses.setBlocks(blocks);
    this.plan.setBlocks(blocks);
  }

  private update(what: Change): void {
    if (what === "theme") this.palette = palette();
    for (const panel of [this.timelinePanel, this.holders, this.addresses, this.allocators, this.plan]) panel.update(what);
    this.options.changed?.(what);
  }

  /** Draws everything anew, now: for another theme, and for paper. */
  redraw(): void {
    this.update("theme");
  }

  /** Draws the timeline for the first time. */
  firstPicture(): void {
    this.timelinePanel.picture.overview.surface.fit();
    this.timelinePanel.picture.surface.fit();
    this.addresses.picture.surface.fit();
    this.timelinePanel.picture.redrawAll();
    this.addresses.picture.draw(true);
  }

  close(): void {
    this.view.close();
    this.tip.close();
  }

  // The selection.

  private mark(members: readonly number[] | null): void {
    const { blocks, view } = this;
    if (!blocks) return;
    view.found = members ? new Uint8Array(blocks.length) : null;
    if (members) for (const block of members) if (view.found) view.found[block] = 1;
    this.timelinePanel.picture.sumFound(blocks.born, blocks.died, blocks.bytes, view.found);
    view.changed("search");
  }

  /** A single block takes the place of the blocks that were marked; what a search found stays. */
  private replaceSelection(): void {
    this.options.picked?.();
    if (!this.view.query && this.view.found) this.mark(null);
  }

  /** Looks for the query; reports an empty selection otherwise. */
  find(): void {
    const { blocks, view } = this;
    if (!blocks) return;
    view.found = view.query ? blocks.matches(view.query) : null;
    this.timelinePanel.picture.sumFound(blocks.born, blocks.died, blocks.bytes, view.found);
    view.changed("search");
  }

  clear(): void {
    this.addresses.picture.selected = -1;
    if (this.plan.picture) this.plan.picture.selected = -1;
    this.options.selection.clear();
    this.mark(null);
  }

  pickBlock(block: number | undefined, row: number): void {
    const { blocks } = this;
    if (!blocks || block === undefined || block < 0) return;
    this.replaceSelection();
    this.addresses.select(block);
    this.options.selection.block(this.timeline, blocks, block);
    if (row !== this.view.moment) this.view.choose(row);
  }

  pickPlanned(block: number, row: number): void {
    const { blocks, plan } = this;
    if (!blocks || !plan.picture || block < 0) return;
    this.replaceSelection();
    plan.picture.selected = block;
    this.options.selection.block(this.timeline, blocks, block, true);
    if (row !== this.view.moment) this.view.choose(row);
  }

  pickGroup(of: Group): void {
    if (!this.blocks) return;
    this.options.picked?.();
    this.options.selection.group(this.timeline, this.blocks, of);
    this.mark(of.blocks);
  }

  pickMembers(title: string, text: string, members: number[]): void {
    const { blocks } = this;
    if (!blocks) return;
    this.options.picked?.();
    const groups = group(blocks, members);
    if (groups.length === 1) this.options.selection.group(this.timeline, blocks, groups[0]);
    else this.options.selection.members(title, text, blocks, members);
    this.mark(members);
  }

  pickUnused(): void {
    const { blocks, timeline, view } = this;
    if (!blocks || blocks.unusedFrom.length === 0) return;
    const members = blocks.unusedAt(timeline.levelsNear(view.moment).row);
    this.options.picked?.();
    this.options.selection.unused(timeline, blocks, members);
    this.mark(members.length > 0 ? members : null);
  }

  /** Shows the request that could not be served, if there is one and its stack is known. */
  pickFailure(): boolean {
    const { blocks } = this;
    const failure = this.moments.find((moment) => moment.kind === "out_of_memory");
    if (!blocks || !failure || blocks.facts.failure_stack === 0) return false;
    this.options.selection.failure(failure.label, blocks);
    return true;
  }

  /** Shows the blocks of a finding, at a moment at which they are there. */
  pickFinding(number: number, title: string, text: string): void {
    const { blocks, view } = this;
    const members = blocks?.marked.get(number);
    if (!blocks || !members || members.length === 0) return;
    const leftOut = blocks.facts.marked.find((one) => one.finding === number)?.left_out ?? 0;
    this.options.selection.members(title, text, blocks, members, leftOut);
    if (!members.some((block) => blocks.isAlive(block, view.moment))) view.choose(this.timeline.firstMoment()?.row ?? view.moment);
    this.mark(members);
  }
}
