// SPDX-License-Identifier: MIT OR Apache-2.0
// Bytes over time, stacked by category. Steps and passes are the axis; every column of pixels shows the highest moment
// within it. Words are placed where they are free, the most important first.

import { AXIS, drawAxis, LEFT, RIGHT } from "./axis";
import { pixelColumns, type PixelColumns } from "./columns";
import { upperBound, type Blocks, type Timeline } from "./data";
import { hatch, Surface, type Palette } from "./dom";
import { bytes, count, niceStep, roundBytes } from "./format";
import { Labels, type Box } from "./labels";
import { Overview } from "./overview";
import { drag, type Hover } from "./pointer";
import type { View } from "./view";

const TOP = 10;
const BOTTOM = AXIS;

export class TimelinePicture {
  readonly overview: Overview;
  readonly surface: Surface;
  /** Where words were put, for tests. */
  labels: readonly Box[] = [];
  private columns: PixelColumns | null = null;
  private brush: [number, number] | null = null;
  /** Bytes of found blocks at the highest moment of each stretch. */
  found: Float64Array | null = null;
  /** The same of the blocks that are the cause, which a line marks while nothing is searched for. */
  private cause: { sums: Float64Array; label: string } | null = null;
  /** Bytes that stay after their last use, by category, at the highest moment of each stretch. */
  private unused = new Map<number, Float64Array>();

  constructor(
    private readonly timeline: Timeline,
    private readonly view: View,
    private readonly hover: Hover,
    private colors: () => Palette,
    /** The least range of the vertical axis, so that two pictures have one scale. */
    private readonly least = 0,
    /** Called after a click on memory that is never used again. */
    private readonly unusedPicked: () => void = () => undefined,
  ) {
    this.overview = new Overview(timeline, view, colors, (event) => this.wheel(event));
    this.surface = new Surface(
      "Timeline: bytes over time by category. Arrow keys pan, plus and minus zoom, comma and full stop step through moments. The table below has the figures.",
      330,
      () => this.draw(),
    );
    this.surface.canvas.classList.add("main");
    this.watch();
  }

  /** The most the vertical axis shows. */
  private get top(): number {
    const { capacity } = this.timeline.facts;
    let most = Math.max(this.timeline.mostUsed, this.least) * 1.06;
    for (const { upper } of this.timeline.refusals()) most = Math.max(most, upper * 1.02);
    return this.view.toCapacity && capacity !== null ? Math.max(most, capacity * 1.04) : Math.max(1, most);
  }

  private x(row: number): number {
    const width = this.surface.width - LEFT - RIGHT;
    return LEFT + ((row - this.view.from) / (this.view.to - this.view.from)) * width;
  }

  private rowAt(x: number): number {
    const width = this.surface.width - LEFT - RIGHT;
    return this.view.from + ((x - LEFT) / width) * (this.view.to - this.view.from);
  }

  /** The column of pixels under a position. */
  private columnAt(x: number): number {
    const last = (this.columns?.row.length ?? 1) - 1;
    return Math.min(last, Math.max(0, Math.floor(x - LEFT)));
  }

  redrawAll(): void {
    this.overview.redraw();
    this.draw();
  }

  draw(): void {
    const { width, height } = this.surface;
    if (width <= LEFT + RIGHT || height <= 0) return;
    this.drawBase(this.colors(), height - BOTTOM);
    this.drawPointer();
  }

  /** Draws what moves with the pointer and the chosen moment. */
  drawPointer(): void {
    const { surface, view } = this;
    const colors = this.colors();
    const context = surface.beginAbove();
    const floor = surface.height - BOTTOM;
    const at = Math.round(this.x(view.moment + 0.5)) + 0.5;
    if (at >= LEFT && at <= surface.width - RIGHT) {
      context.strokeStyle = colors.text;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, floor);
      context.stroke();
    }
    this.cursor(context, colors, floor);
  }

  private drawBase(colors: Palette, floor: number): void {
    const { surface, view, timeline } = this;
    const { width, height } = surface;
    const context = surface.begin();
    const plot = Math.floor(width - LEFT - RIGHT);
    const top = this.top;
    const scale = (floor - TOP) / top;
    const y = (value: number) => floor - value * scale;
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.scale(context, colors, top, y);
    drawAxis(context, timeline, colors, floor, { from: view.from, to: view.to, left: LEFT, width: plot });
    const columns = pixelColumns(timeline, view.from, view.to, plot);
    this.columns = columns;
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, plot, floor - TOP);
    context.clip();
    this.stack(context, columns, colors, y);
    context.restore();
    const labels = new Labels(context, colors.background, { left: LEFT, right: LEFT + plot, top: TOP, bottom: floor });
    this.lines(context, labels, colors, plot, floor, y);
    this.refused(context, labels, colors, y);
    this.causeLabel(labels, columns, colors, y);
    this.marks(context, labels, colors, y);
    this.names(labels, columns, colors, y);
    this.coarseness(labels, columns, colors);
    this.labels = labels.placed;
  }

  /** Says so where the page has less detail than the screen has room for. */
  private coarseness(labels: Labels, columns: PixelColumns, colors: Palette): void {
    const plot = columns.high.length;
    let [changes, longest] = [1, 1];
    for (let column = 0; column < plot; column++) {
      if (column > 0 && columns.high[column] !== columns.high[column - 1]) changes++;
      longest = Math.max(longest, this.timeline.lengthOf(columns.high[column]));
    }
    if (longest <= 1 || plot / changes < 4) return;
    const text = `each bar is the highest of up to ${count(longest)} events`;
    const from = LEFT + plot - 6 - labels.width(text);
    labels.put(text, colors.muted, [TOP + 9, TOP + 25, TOP + 41].map((line) => [from, line]));
  }

  private scale(context: CanvasRenderingContext2D, colors: Palette, top: number, y: (value: number) => number): void {
    const { width } = this.surface;
    const step = niceStep(top / 7, true);
    context.textAlign = "right";
    for (let value = 0; value <= top; value += step) {
      const at = Math.round(y(value)) + 0.5;
      context.fillStyle = colors.grid;
      context.fillRect(LEFT, at - 0.5, width - LEFT - RIGHT, 1);
      context.fillStyle = colors.muted;
      context.fillText(value === 0 ? "0" : roundBytes(value), LEFT - 6, Math.max(TOP + 4, at));
    }
  }

  private stack(context: CanvasRenderingContext2D, columns: PixelColumns, colors: Palette, y: (value: number) => number): void {
    const { timeline } = this;
    const plot = columns.high.length;
    const base = new Float64Array(plot).fill(timeline.facts.context);
    const floor = y(0);
    if (timeline.facts.context > 0) {
      context.fillStyle = hatch(context, colors.context, colors.grid, this.surface.scale);
      const height = floor - y(timeline.facts.context);
      context.fillRect(LEFT, floor - height, plot, height);
    }
    for (const category of timeline.present) {
      const values = timeline.high[category];
      context.fillStyle = colors.categories[category];
      // Neighbours of equal height are one rectangle.
      let from = 0;
      for (let column = 1; column <= plot; column++) {
        const same =
          column < plot && base[column] === base[from] && values[columns.high[column]] === values[columns.high[from]];
        if (same) continue;
        const value = values[columns.high[from]];
        if (value > 0) {
          const upper = y(base[from] + value);
          context.fillRect(LEFT + from, upper, column - from, y(base[from]) - upper);
        }
        from = column;
      }
      for (let column = 0; column < plot; column++) base[column] += values[columns.high[column]];
      this.stripe(context, category, columns, base, colors, y);
    }
    if (timeline.hasReserved) {
      context.beginPath();
      context.moveTo(LEFT, y(base[0]));
      for (let column = 0; column < plot; column++) {
        const at = y(base[column]);
        context.lineTo(LEFT + column, at);
        context.lineTo(LEFT + column + 1, at);
      }
      const held = (column: number) =>
        Math.max(base[column], timeline.highReserved[columns.high[column]] + timeline.facts.context);
      for (let column = plot - 1; column >= 0; column--) {
        const at = y(held(column));
        context.lineTo(LEFT + column + 1, at);
        context.lineTo(LEFT + column, at);
      }
      context.fillStyle = hatch(context, rgbText(colors.hole), rgbText(colors.holeLine), this.surface.scale);
      context.fill();
      context.beginPath();
      for (let column = 0; column < plot; column++) {
        const at = Math.round(y(held(column))) + 0.5;
        if (column === 0) context.moveTo(LEFT, at);
        context.lineTo(LEFT + column, at);
        context.lineTo(LEFT + column + 1, at);
      }
      context.strokeStyle = colors.text;
      context.lineWidth = 1.25;
      context.stroke();
    }
    // Where one column holds many rows, how far down it goes within them.
    context.beginPath();
    let pen = false;
    for (let column = 0; column < plot; column++) {
      const low = timeline.lowTotal[columns.low[column]];
      const high = timeline.highTotal[columns.high[column]];
      if (high - low < high * 0.01) {
        pen = false;
        continue;
      }
      const at = Math.round(y(low + timeline.facts.context)) + 0.5;
      if (pen) context.lineTo(LEFT + column + 0.5, at);
      else context.moveTo(LEFT + column + 0.5, at);
      pen = true;
    }
    context.strokeStyle = colors.background;
    context.lineWidth = 1;
    context.setLineDash([2, 2]);
    context.stroke();
    context.setLineDash([]);
    const marked = this.found ?? this.cause?.sums;
    if (marked) {
      context.beginPath();
      let before = 0;
      for (let column = 0; column < plot; column++) {
        const value = marked[columns.high[column]];
        const at = y(value + timeline.facts.context);
        // The line of the cause ends where none of its blocks live.
        const gone = !this.found && value === 0 && before === 0;
        before = value;
        if (gone) context.moveTo(LEFT + column + 1, at);
        else if (column === 0) context.moveTo(LEFT, at);
        if (gone) continue;
        context.lineTo(LEFT + column, at);
        context.lineTo(LEFT + column + 1, at);
      }
      context.strokeStyle = colors.background;
      context.lineWidth = 4;
      context.stroke();
      context.strokeStyle = this.found ? colors.accent : colors.text;
      context.lineWidth = 2;
      context.stroke();
    }
  }

  /** Stripes the upper part of a band, as much of it as is never used again; `base` is its upper edge. */
  private stripe(context: CanvasRenderingContext2D, category: number, columns: PixelColumns, base: Float64Array, colors: Palette, y: (value: number) => number): void {
    const unused = this.unused.get(category);
    if (!unused) return;
    context.beginPath();
    for (let column = 0; column < columns.high.length; column++) {
      const value = unused[columns.high[column]];
      if (value <= 0) continue;
      const upper = y(base[column]);
      context.rect(LEFT + column, upper, 1, y(base[column] - value) - upper);
    }
    context.fillStyle = hatch(context, "transparent", colors.background, this.surface.scale, true);
    context.fill();
  }

  /** Whether a place of the picture is memory that is never used again. */
  private isUnused(x: number, at: number): boolean {
    if (!this.columns || this.unused.size === 0) return false;
    const stretch = this.columns.high[this.columnAt(x)];
    const floor = this.surface.height - BOTTOM;
    const value = ((floor - at) / (floor - TOP)) * this.top;
    let upper = this.timeline.facts.context;
    for (const category of this.timeline.present) {
      upper += this.timeline.high[category][stretch];
      if (value <= upper) return value > upper - (this.unused.get(category)?.[stretch] ?? 0);
    }
    return false;
  }

  /** The name of the cause at its line, above it at its highest moment in view if there is room. */
  private causeLabel(labels: Labels, columns: PixelColumns, colors: Palette, y: (value: number) => number): void {
    const { cause } = this;
    if (this.found || !cause) return;
    const plot = columns.high.length;
    let highest = 0;
    for (let column = 1; column < plot; column++) if (cause.sums[columns.high[column]] > cause.sums[columns.high[highest]]) highest = column;
    const most = cause.sums[columns.high[highest]];
    if (most <= 0) return;
    const font = "600 11px system-ui, sans-serif";
    const at = y(most + this.timeline.facts.context);
    // The code alone where the title is too long.
    for (const name of [cause.label, cause.label.split(" ")[0]]) {
      const text = `${name}, its blocks: ${bytes(most)}`;
      const width = labels.width(text, font);
      const from = Math.min(LEFT + plot - width - 6, Math.max(LEFT + 6, LEFT + highest - width / 2));
      if (labels.put(text, colors.text, [at - 10, at + 12, at - 26, at + 28].flatMap((line): [number, number][] => [[from, line], [LEFT + 6, line]]), font)) return;
    }
  }

  /** A request that could not be served: a block on top of what was in use, and beside it what was free. */
  private refused(context: CanvasRenderingContext2D, labels: Labels, colors: Palette, y: (value: number) => number): void {
    const { view, surface } = this;
    const width = 34;
    for (const { moment, lower, upper } of this.timeline.refusals()) {
      if (!moment.refused || moment.row < view.from || moment.row >= view.to) continue;
      const right = Math.min(surface.width - RIGHT, Math.max(LEFT + width, this.x(moment.row + 1)));
      const [left, top, bottom] = [right - width, Math.max(TOP, y(upper)), y(lower)];
      context.globalAlpha = 0.16;
      context.fillStyle = colors.warn;
      context.fillRect(left, top, width, bottom - top);
      context.globalAlpha = 1;
      context.strokeStyle = colors.warn;
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, width - 2, Math.max(1, bottom - top - 2));
      const free = y(lower + moment.refused.free);
      context.lineWidth = 1.5;
      context.beginPath();
      for (const end of [free, bottom - 0.75]) {
        context.moveTo(left - 9, end);
        context.lineTo(left - 3, end);
      }
      context.moveTo(left - 6, free);
      context.lineTo(left - 6, bottom - 0.75);
      context.stroke();
      const requested = `requested ${bytes(moment.refused.requested)}`;
      const unused = `free ${bytes(moment.refused.free)}`;
      const before = (text: string) => left - 14 - labels.width(text);
      labels.put(requested, colors.warn, [[before(requested), Math.max(TOP + 7, top + 6)], [before(requested), top + 22], [before(requested), bottom - 24]]);
      labels.put(unused, colors.warn, [(free + bottom) / 2, bottom - 6, bottom + 10, top - 8, bottom + 26].map((line) => [before(unused), line]));
    }
  }

  /** Names of the bands where there is room, so that colour is not all there is. */
  private names(labels: Labels, columns: PixelColumns, colors: Palette, y: (value: number) => number): void {
    const { timeline } = this;
    const plot = columns.high.length;
    const font = "600 11px system-ui, sans-serif";
    for (const category of timeline.present) {
      const name = timeline.facts.categories[category];
      const width = Math.ceil(labels.width(name, font));
      const room = Math.max(width + 12, 48);
      // The windows in which the band is thick throughout, the thickest first.
      const windows: [number, number, number][] = [];
      for (let from = 0; from + room <= plot; from += 24) {
        let upper = -Infinity;
        let lower = Infinity;
        for (let column = from; column < from + room; column += 6) {
          let under = timeline.facts.context;
          for (const other of timeline.present) {
            if (other === category) break;
            under += timeline.high[other][columns.high[column]];
          }
          upper = Math.max(upper, y(under + timeline.high[category][columns.high[column]]));
          lower = Math.min(lower, y(under));
        }
        if (lower - upper >= 14) windows.push([lower - upper, LEFT + from + (room - width) / 2, (upper + lower) / 2]);
      }
      windows.sort((one, other) => other[0] - one[0]);
      labels.put(name, colors.text, windows.map(([, at, middle]) => [at, middle]), font);
    }
  }

  private lines(context: CanvasRenderingContext2D, labels: Labels, colors: Palette, plot: number, floor: number, y: (value: number) => number): void {
    const { capacity } = this.timeline.facts;
    if (capacity !== null) {
      const at = Math.round(y(capacity)) + 0.5;
      if (at >= TOP) {
        context.strokeStyle = colors.warn;
        context.lineWidth = 1.5;
        context.setLineDash([7, 4]);
        context.beginPath();
        context.moveTo(LEFT, at);
        context.lineTo(LEFT + plot, at);
        context.stroke();
        context.setLineDash([]);
        labels.put(`the GPU has ${bytes(capacity)}`, colors.warn, [[LEFT + 6, at - 9], [LEFT + 6, at + 10]]);
      } else {
        labels.put(`the GPU has ${bytes(capacity)}, above ↑`, colors.warn, [[LEFT + 6, TOP + 8]]);
      }
    }
    context.fillStyle = colors.line;
    context.fillRect(LEFT, floor, plot, 1);
    context.fillRect(LEFT - 1, TOP, 1, floor - TOP + 1);
  }

  private marks(context: CanvasRenderingContext2D, labels: Labels, colors: Palette, y: (value: number) => number): void {
    const { timeline, view } = this;
    const order = { out_of_memory: 0, peak: 1, second_peak: 2, mark: 3, step_peak: 4 };
    const shown = timeline.facts.moments
      .filter((moment) => moment.kind !== "step_peak" && moment.row >= view.from && moment.row < view.to)
      .sort((one, other) => order[one.kind] - order[other.kind]);
    for (const moment of shown) {
      const at = this.x(moment.row + 0.5);
      const height = y(moment.allocated + timeline.facts.context);
      const bad = moment.kind === "out_of_memory";
      context.fillStyle = bad ? colors.warn : colors.text;
      context.strokeStyle = colors.background;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(at, height);
      context.lineTo(at - 5, height - 9);
      context.lineTo(at + 5, height - 9);
      context.closePath();
      context.stroke();
      context.fill();
      const text = bad ? `out of memory at ${bytes(moment.allocated)}` : moment.kind === "mark" ? moment.label.slice(0, 30) : `${moment.label} ${bytes(moment.allocated)}`;
      const room = labels.width(text);
      const [after, before] = [at + 9, at - 9 - room];
      // Beside the marker, else above or below it.
      const lines = [height - 5, height - 20, height + 10, height - 36, height + 26];
      labels.put(text, bad ? colors.warn : colors.text, lines.flatMap((line): [number, number][] => [[after, line], [before, line]]));
    }
  }

  private cursor(context: CanvasRenderingContext2D, colors: Palette, floor: number): void {
    if (this.brush) {
      const [from, to] = [Math.min(...this.brush), Math.max(...this.brush)];
      context.globalAlpha = 0.25;
      context.fillStyle = colors.accent;
      context.fillRect(from, TOP, to - from, floor - TOP);
      context.globalAlpha = 1;
    }
    const row = this.hover.row;
    if (row === null) return;
    const at = Math.round(this.x(row)) + 0.5;
    if (at < LEFT || at > this.surface.width - RIGHT) return;
    context.strokeStyle = colors.muted;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(at, TOP);
    context.lineTo(at, floor);
    context.stroke();
    context.setLineDash([]);
  }

  private watch(): void {
    const { view } = this;
    const main = this.surface.canvas;
    drag(main, {
      start: (x, _y, event) => {
        const brushing = event.shiftKey;
        const [from, to] = [view.from, view.to];
        const perPixel = (to - from) / (this.surface.width - LEFT - RIGHT);
        return {
          move: (now) => {
            if (brushing) {
              this.brush = [Math.max(LEFT, x), Math.max(LEFT, now)];
              view.changed("hover");
            } else {
              view.show(from - (now - x) * perPixel, to - (now - x) * perPixel);
            }
          },
          end: (now, y, moved) => {
            this.brush = null;
            if (!moved) this.pick(x, y);
            else if (brushing) {
              const rows = [this.rowAt(x), this.rowAt(now)].sort((one, other) => one - other);
              view.show(rows[0], rows[1]);
            }
          },
        };
      },
      pinch: (factor, x) => view.zoom(factor, this.rowAt(x)),
      hover: (x, y, event) => this.point(x, y, event),
      leave: () => this.hover.leave(),
    });
    main.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    main.addEventListener("dblclick", (event) => view.zoom(0.4, this.rowAt(event.offsetX)));
  }

  /** Zooms with Ctrl or ⌘, pans sideways; a plain wheel scrolls the page as anywhere. */
  private wheel(event: WheelEvent): void {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), this.rowAt(event.offsetX));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.view.pan((event.deltaX || event.deltaY) / this.surface.width);
    }
  }

  private pick(x: number, y: number): void {
    if (!this.columns || x < LEFT) return;
    const isUnused = this.isUnused(x, y);
    this.view.choose(this.timeline.highRow[this.columns.high[this.columnAt(x)]]);
    if (isUnused) this.unusedPicked();
  }

  private point(x: number, y: number, event: PointerEvent): void {
    if (!this.columns || x < LEFT || x > this.surface.width - RIGHT) {
      this.hover.leave();
      return;
    }
    const stretch = this.columns.high[this.columnAt(x)];
    this.hover.row = this.rowAt(x);
    this.hover.timeline(stretch, this.columns.low[this.columnAt(x)], event.clientX, event.clientY, y);
    this.view.changed("hover");
  }

  /** Sums found blocks at the highest moment of each stretch. */
  sumFound(born: Float64Array, died: Float64Array, sizes: Float64Array, found: Uint8Array | null): void {
    const members: number[] = [];
    if (found) for (let block = 0; block < found.length; block++) if (found[block]) members.push(block);
    this.found = found ? this.sum(born, died, sizes, members) : null;
  }

  /** Marks the blocks of the cause with a line. */
  markCause(born: Float64Array, died: Float64Array, sizes: Float64Array, members: readonly number[], label: string): void {
    this.cause = { sums: this.sum(born, died, sizes, members), label };
  }

  /** Stripes the blocks that stay after their last use. */
  markUnused(blocks: Blocks): void {
    const members = new Map<number, number[]>();
    blocks.unusedFrom.forEach((from, block) => {
      if (from === Infinity) return;
      const category = blocks.category[block];
      const of = members.get(category);
      if (of) of.push(block);
      else members.set(category, [block]);
    });
    this.unused = new Map([...members].map(([category, of]) => [category, this.sum(blocks.unusedFrom, blocks.died, blocks.bytes, of)]));
  }

  private sum(born: Float64Array, died: Float64Array, sizes: Float64Array, members: readonly number[]): Float64Array {
    const { highRow } = this.timeline;
    const sums = new Float64Array(highRow.length + 1);
    for (const block of members) {
      const first = upperBound(highRow, born[block] - 1);
      const last = upperBound(highRow, died[block] - 1);
      sums[first] += sizes[block];
      sums[last] -= sizes[block];
    }
    for (let index = 1; index < sums.length; index++) sums[index] += sums[index - 1];
    return sums;
  }
}

export function rgbText([red, green, blue]: [number, number, number]): string {
  return `rgb(${red} ${green} ${blue})`;
}
