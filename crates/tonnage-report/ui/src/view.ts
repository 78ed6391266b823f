// SPDX-License-Identifier: MIT OR Apache-2.0
// What is being looked at: rows, addresses, a moment, a search. Kept in the address of the page, so that a link shows
// the same.

import type { Timeline } from "./data";

export type Grouping = "kind" | "module" | "stack";
export const GROUPINGS: [Grouping, string][] = [
  ["kind", "by module, layers together"],
  ["module", "by module, each layer"],
  ["stack", "by call stack"],
];

/** The part of a picture's height that is shown, as shares of it. */
export interface Band {
  top: number;
  bottom: number;
  showAddresses(top: number, bottom: number): void;
}

/** Kept within the picture, and never too thin. */
function within(top: number, bottom: number): [number, number] {
  const width = Math.min(1, Math.max(1e-6, bottom - top));
  const start = Math.min(Math.max(0, top), 1 - width);
  return [start, start + width];
}

/** A separate band, which no link keeps. */
export class OwnBand implements Band {
  top = 0;
  bottom = 1;

  constructor(private readonly changed: () => void) {}

  showAddresses(top: number, bottom: number): void {
    [this.top, this.bottom] = within(top, bottom);
    this.changed();
  }
}

export class View implements Band {
  /** Rows shown: from, and the one after the last. */
  from = 0;
  to = 1;
  /** The moment whose parts are shown. */
  moment = 0;
  /** The part of the address space shown, as shares of it. */
  top = 0;
  bottom = 1;
  grouping: Grouping = "kind";
  query = "";
  /** The theme that a link keeps, if any. */
  theme: () => string | null = () => null;
  /** Whether the vertical axis reaches to the capacity. */
  toCapacity = true;
  /** Drawn blocks that match the query or belong to what is chosen; none without one. */
  found: Uint8Array | null = null;
  /** Drawn blocks that keep holes from being given back. */
  pins: readonly number[] = [];
  private listeners: ((what: Change) => void)[] = [];
  private pending = new Set<Change>();
  private writing = 0;

  constructor(
    readonly timeline: Timeline,
    /** The number of the pane where the address of the page keeps what is looked at, else none. */
    private readonly pane: number | null = 0,
  ) {
    this.to = timeline.rows;
    this.moment = timeline.firstMoment()?.row ?? 0;
    const most = Math.max(timeline.mostUsed, ...timeline.refusals().map(({ upper }) => upper));
    this.toCapacity = timeline.facts.capacity === null || most > 0.35 * timeline.facts.capacity;
  }

  onChange(listener: (what: Change) => void): void {
    this.listeners.push(listener);
  }

  /** Tells the pictures once per frame, however often something changed. */
  changed(what: Change): void {
    const idle = this.pending.size === 0;
    this.pending.add(what);
    if (idle) {
      requestAnimationFrame(() => {
        const all = [...this.pending];
        this.pending.clear();
        const began = performance.now();
        for (const one of all) for (const listener of this.listeners) listener(one);
        frames.push(performance.now() - began);
        if (frames.length > 2000) frames.shift();
      });
    }
    this.keep();
  }

  /** Puts what is looked at into the address of the page, soon. */
  keep(): void {
    clearTimeout(this.writing);
    this.writing = window.setTimeout(() => this.write(), 150);
  }

  /** Shows these rows, kept within the recording and at least a few. */
  show(from: number, to: number): void {
    const rows = this.timeline.rows;
    const width = Math.min(rows, Math.max(8, to - from));
    const start = Math.min(Math.max(0, from), rows - width);
    this.from = start;
    this.to = start + width;
    this.changed("range");
  }

  zoom(factor: number, around = (this.from + this.to) / 2): void {
    const part = (around - this.from) / (this.to - this.from);
    const width = Math.min(this.timeline.rows, Math.max(8, (this.to - this.from) * factor));
    this.show(around - part * width, around + (1 - part) * width);
  }

  pan(share: number): void {
    const shift = share * (this.to - this.from);
    this.show(this.from + shift, this.to + shift);
  }

  showAddresses(top: number, bottom: number): void {
    [this.top, this.bottom] = within(top, bottom);
    this.changed("addresses");
  }

  /** Chooses the known moment nearest to a row. */
  choose(row: number): void {
    this.moment = this.timeline.levelsNear(row).row;
    this.changed("moment");
  }

  /** Scales to the peak instead of the capacity, or the other way. */
  switchScale(): void {
    this.toCapacity = !this.toCapacity;
    this.changed("range");
  }

  /** Shows the parts in the next of the ways they can be grouped. */
  switchGrouping(): void {
    const now = GROUPINGS.findIndex(([grouping]) => grouping === this.grouping);
    this.grouping = GROUPINGS[(now + 1) % GROUPINGS.length][0];
    this.changed("grouping");
  }

  /** Shows the step around the chosen moment. */
  showStep(): void {
    const { timeline } = this;
    const phase = timeline.hasPhases ? timeline.phaseAt(this.moment) : -1;
    if (phase < 0) {
      const width = timeline.rows / 20;
      this.show(this.moment - width / 2, this.moment + width / 2);
      return;
    }
    const step = timeline.phaseStep[phase];
    let [first, last] = [phase, phase];
    while (first > 0 && timeline.phaseStep[first - 1] === step) first--;
    while (last + 1 < timeline.phase.length && timeline.phaseStep[last + 1] === step) last++;
    const [from, to] = [timeline.phaseFrom[first], timeline.phaseTo[last]];
    this.show(from - (to - from) * 0.02, to + (to - from) * 0.02);
  }

  /** Where zooming aims: at the chosen moment if it is in view. */
  get centre(): number {
    return this.moment >= this.from && this.moment < this.to ? this.moment : (this.from + this.to) / 2;
  }

  /** Brings the chosen moment into view. */
  reveal(): void {
    if (this.moment < this.from || this.moment >= this.to) {
      const width = this.to - this.from;
      this.show(this.moment - width / 2, this.moment + width / 2);
    }
  }

  private write(): void {
    if (this.pane === null) return;
    const fields = new URLSearchParams();
    if (this.from > 0 || this.to < this.timeline.rows) {
      fields.set("rows", `${Math.round(this.from)}-${Math.round(this.to)}`);
    }
    if (this.top > 0 || this.bottom < 1) fields.set("addresses", `${this.top.toFixed(6)}-${this.bottom.toFixed(6)}`);
    if (this.moment !== this.timeline.firstMoment()?.row) fields.set("at", String(this.moment));
    if (this.grouping !== "kind") fields.set("by", this.grouping);
    if (this.query) fields.set("find", this.query);
    const theme = this.theme();
    if (theme) fields.set("theme", theme);
    if (this.pane > 0) fields.set("pane", String(this.pane));
    const fragment = fields.toString();
    if (fragment !== location.hash.slice(1)) {
      history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
    }
  }

  /** No longer shown: nothing is written any more. */
  close(): void {
    clearTimeout(this.writing);
    this.listeners = [];
  }

  /** Takes over the state in a link; anything odd is left out. */
  read(): void {
    if (this.pane === null) return;
    const fields = new URLSearchParams(location.hash.slice(1));
    const pair = (name: string): [number, number] | null => {
      const match = /^([\d.]+)-([\d.]+)$/.exec(fields.get(name) ?? "");
      if (!match) return null;
      const [from, to] = [Number(match[1]), Number(match[2])];
      return from < to ? [from, to] : null;
    };
    const rows = pair("rows");
    if (rows) this.show(...rows);
    const addresses = pair("addresses");
    if (addresses) this.showAddresses(...addresses);
    const at = Number(fields.get("at") ?? Number.NaN);
    if (Number.isFinite(at) && at >= 0 && at < this.timeline.rows) this.choose(at);
    this.grouping = GROUPINGS.find(([grouping]) => grouping === fields.get("by"))?.[0] ?? "kind";
    this.query = fields.get("find") ?? "";
  }
}

export type Change = "range" | "addresses" | "packing" | "moment" | "hover" | "search" | "theme" | "grouping";

/** How long the pictures took to draw, for tests. */
export const frames: number[] = [];
