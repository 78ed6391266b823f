// SPDX-License-Identifier: MIT OR Apache-2.0
// Bytes over time, stacked by category: the overview with its brush, and the picture itself.

import { pixelColumns, type PixelColumns } from "./columns";
import { upperBound, type Timeline } from "./data";
import { hatch, Surface, type Palette } from "./dom";
import { bytes, count, duration, niceStep, roundBytes } from "./format";
import { drag, type Hover } from "./pointer";
import type { View } from "./view";

export const LEFT = 64;
export const RIGHT = 12;
const TOP = 34;
const BOTTOM = 34;

export class TimelinePicture {
  readonly overview: Surface;
  readonly surface: Surface;
  private columns: PixelColumns | null = null;
  private overviewImage: HTMLCanvasElement | null = null;
  private brush: [number, number] | null = null;
  /** Bytes of found blocks at the highest moment of each stretch. */
  found: Float64Array | null = null;

  constructor(
    private readonly timeline: Timeline,
    private readonly view: View,
    private readonly hover: Hover,
    private colors: () => Palette,
  ) {
    this.overview = new Surface("Overview of the whole recording. Drag to choose the rows shown below.", 52, () => {
      this.overviewImage = null;
      this.drawOverview();
    });
    this.surface = new Surface(
      "Timeline: bytes over time by category. Arrow keys pan, plus and minus zoom, comma and full stop step through moments. The table below has the figures.",
      320,
      () => this.draw(),
    );
    this.surface.canvas.classList.add("main");
    this.watch();
  }

  /** The most the vertical axis shows. */
  private get top(): number {
    const { capacity } = this.timeline.facts;
    const most = this.timeline.mostUsed * 1.06;
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
    this.overviewImage = null;
    this.drawOverview();
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
      context.moveTo(at, 16);
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
    this.axes(context, colors, floor, top, y);
    const columns = pixelColumns(timeline, view.from, view.to, plot);
    this.columns = columns;
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, plot, floor - TOP);
    context.clip();
    this.stack(context, columns, colors, y);
    context.restore();
    this.phases(context, columns, colors);
    this.lines(context, colors, plot, floor, y);
    this.marks(context, colors, y);
    this.coarseness(context, columns, colors);
  }

  /** Says so where the page has less detail than the screen has room for. */
  private coarseness(context: CanvasRenderingContext2D, columns: PixelColumns, colors: Palette): void {
    const plot = columns.high.length;
    let [changes, longest] = [1, 1];
    for (let column = 0; column < plot; column++) {
      if (column > 0 && columns.high[column] !== columns.high[column - 1]) changes++;
      longest = Math.max(longest, this.timeline.lengthOf(columns.high[column]));
    }
    if (longest <= 1 || plot / changes < 4) return;
    context.textAlign = "right";
    outlined(context, `each bar is the highest of up to ${count(longest)} rows`, LEFT + plot - 6, TOP + 9, colors.muted, colors.background);
  }

  private axes(context: CanvasRenderingContext2D, colors: Palette, floor: number, top: number, y: (value: number) => number): void {
    const { width } = this.surface;
    const step = niceStep(top / 7, true);
    context.textAlign = "right";
    context.fillStyle = colors.muted;
    for (let value = 0; value <= top; value += step) {
      const at = Math.round(y(value)) + 0.5;
      context.fillStyle = colors.grid;
      context.fillRect(LEFT, at - 0.5, width - LEFT - RIGHT, 1);
      context.fillStyle = colors.muted;
      context.fillText(value === 0 ? "0" : roundBytes(value), LEFT - 6, at);
    }
    const span = this.view.to - this.view.from;
    const rows = Math.max(1, niceStep(span / Math.max(2, (width - LEFT) / 130), false));
    context.textAlign = "center";
    const timed = this.timeline.timeAt(0) !== null;
    for (let row = Math.ceil(this.view.from / rows) * rows; row <= this.view.to; row += rows) {
      const at = this.x(row);
      if (at < LEFT - 1 || at > width - RIGHT + 1) continue;
      context.fillStyle = colors.line;
      context.fillRect(Math.round(at), floor, 1, 5);
      context.fillStyle = colors.muted;
      const time = timed ? this.timeline.timeAt(row) : null;
      for (const [text, line] of [[count(row), 13], [time === null ? "" : duration(time), 26]] as [string, number][]) {
        const half = context.measureText(text).width / 2;
        context.fillText(text, Math.min(width - half, Math.max(LEFT + half - 4, at)), floor + line);
      }
    }
    context.textAlign = "left";
    context.fillText(timed ? "row, time" : "row", 4, floor + 13);
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
    if (this.found) {
      context.beginPath();
      for (let column = 0; column < plot; column++) {
        const at = y(this.found[columns.high[column]] + timeline.facts.context);
        if (column === 0) context.moveTo(LEFT, at);
        context.lineTo(LEFT + column, at);
        context.lineTo(LEFT + column + 1, at);
      }
      context.strokeStyle = colors.background;
      context.lineWidth = 4;
      context.stroke();
      context.strokeStyle = colors.accent;
      context.lineWidth = 2;
      context.stroke();
    }
    this.labels(context, columns, colors, y);
  }

  /** Names of the bands where there is room, so that colour is not all there is. */
  private labels(context: CanvasRenderingContext2D, columns: PixelColumns, colors: Palette, y: (value: number) => number): void {
    const { timeline } = this;
    const plot = columns.high.length;
    const windowWidth = 96;
    context.textAlign = "center";
    context.font = "600 11px system-ui, sans-serif";
    const names = [...timeline.present.map((category) => timeline.facts.categories[category])];
    for (const [index, category] of timeline.present.entries()) {
      // The window in which the band is thickest throughout.
      let best = 0;
      let bestAt = -1;
      let bestMiddle = 0;
      for (let from = 0; from + windowWidth <= plot; from += 24) {
        let upper = -Infinity;
        let lower = Infinity;
        for (let column = from; column < from + windowWidth; column += 6) {
          let under = timeline.facts.context;
          for (const other of timeline.present) {
            if (other === category) break;
            under += timeline.high[other][columns.high[column]];
          }
          upper = Math.max(upper, y(under + timeline.high[category][columns.high[column]]));
          lower = Math.min(lower, y(under));
        }
        if (lower - upper > best) {
          best = lower - upper;
          bestAt = from + windowWidth / 2;
          bestMiddle = (upper + lower) / 2;
        }
      }
      if (best >= 14 && bestAt >= 0) {
        context.lineWidth = 3;
        context.strokeStyle = colors.background;
        context.fillStyle = colors.text;
        context.strokeText(names[index], LEFT + bestAt, bestMiddle);
        context.fillText(names[index], LEFT + bestAt, bestMiddle);
      }
    }
    context.font = "11px system-ui, sans-serif";
  }

  private phases(context: CanvasRenderingContext2D, columns: PixelColumns, colors: Palette): void {
    const { timeline } = this;
    if (timeline.phaseFrom.length === 0) return;
    const plot = columns.row.length;
    const first = Math.max(0, timeline.phaseAt(columns.row[0]));
    const last = upperBound(timeline.phaseFrom, this.view.to) - 1;
    const wide = plot / Math.max(1, last - first + 1);
    context.textAlign = "left";
    if (wide < 3) {
      // Too many to tell apart: the numbers of steps only.
      context.fillStyle = colors.phases[0];
      context.fillRect(LEFT, 17, plot, 13);
      context.fillStyle = colors.text;
      const text = `${count(last - first + 1)} phases: zoom in to tell them apart`;
      context.fillText(context.measureText(text).width < plot - 8 ? text : `${count(last - first + 1)} phases`, LEFT + 4, 24);
    } else {
      for (let phase = first; phase <= last; phase++) {
        const left = Math.max(LEFT, this.x(timeline.phaseFrom[phase]));
        const right = Math.min(LEFT + plot, this.x(timeline.phaseTo[phase]));
        if (right <= left) continue;
        const kind = timeline.phase[phase];
        context.fillStyle = colors.phases[kind];
        context.fillRect(left, 17, right - left, 13);
        context.fillStyle = colors.background;
        context.fillRect(left, 17, 1, 13);
        const name = timeline.facts.phases[kind];
        const text = right - left > 7 * name.length + 6 ? name : right - left > 12 ? name[0].toUpperCase() : "";
        if (text) {
          context.fillStyle = colors.text;
          context.fillText(text, left + 4, 24);
        }
      }
    }
    this.steps(context, first, last, plot, colors);
  }

  /** Numbers of steps where they begin, as many as there is room for. */
  private steps(context: CanvasRenderingContext2D, first: number, last: number, plot: number, colors: Palette): void {
    const { timeline } = this;
    context.fillStyle = colors.muted;
    let free = LEFT - 1;
    // With room for every other step only, it is better to leave out the one that began before the picture.
    for (let phase = first; phase <= last; phase++) {
      const step = timeline.phaseStep[phase];
      const begins = phase === 0 || timeline.phaseStep[phase - 1] !== step;
      if (!begins || timeline.phase[phase] === 0) continue;
      const at = this.x(timeline.phaseFrom[phase]);
      if (at < free || at < LEFT - 0.5) continue;
      const text = `step ${count(step)}`;
      const room = context.measureText(text).width;
      if (at + room > LEFT + plot) break;
      context.fillRect(at, 4, 1, 10);
      context.fillText(text, at + 4, 9);
      free = at + room + 16;
    }
  }

  private lines(context: CanvasRenderingContext2D, colors: Palette, plot: number, floor: number, y: (value: number) => number): void {
    const { capacity } = this.timeline.facts;
    context.textAlign = "left";
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
        outlined(context, `capacity ${bytes(capacity)}`, LEFT + 6, at + (at - TOP < 16 ? 9 : -8), colors.warn, colors.background);
      } else {
        outlined(context, `capacity ${bytes(capacity)}, above ↑`, LEFT + 6, TOP + 8, colors.warn, colors.background);
      }
    }
    context.fillStyle = colors.line;
    context.fillRect(LEFT, floor, plot, 1);
    context.fillRect(LEFT - 1, TOP, 1, floor - TOP + 1);
  }

  private marks(context: CanvasRenderingContext2D, colors: Palette, y: (value: number) => number): void {
    const { timeline, view } = this;
    const order = { out_of_memory: 0, peak: 1, second_peak: 2, mark: 3, step_peak: 4 };
    const shown = timeline.facts.moments
      .filter((moment) => moment.kind !== "step_peak" && moment.row >= view.from && moment.row < view.to)
      .sort((one, other) => order[one.kind] - order[other.kind]);
    const taken: [number, number, number][] = [];
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
      // Beside the marker, where the line of the chosen moment does not cross it.
      const room = context.measureText(text).width;
      const before = at + 9 + room > this.surface.width - RIGHT;
      const from = before ? at - 9 - room : at + 9;
      const limit = y(timeline.facts.capacity ?? -1);
      const beside = Math.max(TOP + 8, height - 5);
      const line = Math.abs(beside - limit) < 10 ? limit + 11 : beside;
      // The more important one keeps its words.
      if (taken.some(([left, right, level]) => from < right && from + room > left && Math.abs(level - line) < 14)) continue;
      taken.push([from - 4, from + room + 4, line]);
      context.textAlign = "left";
      outlined(context, text, from, line, bad ? colors.warn : colors.text, colors.background);
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

  drawOverview(): void {
    const { overview, timeline, view } = this;
    const { width, height } = overview;
    if (width <= LEFT + RIGHT) return;
    const colors = this.colors();
    const context = overview.begin();
    const plot = Math.floor(width - LEFT - RIGHT);
    if (!this.overviewImage) {
      const image = document.createElement("canvas");
      image.width = plot;
      image.height = height;
      const inner = image.getContext("2d", { alpha: false });
      if (!inner) return;
      inner.fillStyle = colors.background;
      inner.fillRect(0, 0, plot, height);
      const columns = pixelColumns(timeline, 0, timeline.rows, plot);
      const scale = (height - 2) / Math.max(1, timeline.mostUsed * 1.02);
      for (let column = 0; column < plot; column++) {
        let at = height - timeline.facts.context * scale;
        inner.fillStyle = colors.context;
        inner.fillRect(column, at, 1, height - at);
        const stretch = columns.high[column];
        for (const category of timeline.present) {
          const part = timeline.high[category][stretch] * scale;
          inner.fillStyle = colors.categories[category];
          inner.fillRect(column, at - part, 1, part);
          at -= part;
        }
      }
      this.overviewImage = image;
    }
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    context.drawImage(this.overviewImage, LEFT, 0);
    const x = (row: number) => LEFT + (row / timeline.rows) * plot;
    const [from, to] = [x(view.from), Math.max(x(view.to), x(view.from) + 2)];
    context.fillStyle = colors.background;
    context.globalAlpha = 0.72;
    context.fillRect(LEFT, 0, from - LEFT, height);
    context.fillRect(to, 0, LEFT + plot - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.5, 0.75, to - from - 1, height - 1.5);
    context.fillStyle = colors.text;
    for (const at of [from, to]) context.fillRect(at - 2, height / 2 - 9, 4, 18);
    context.fillRect(Math.round(x(view.moment)), 0, 1, height);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colors.muted;
    context.fillText("overview", LEFT - 6, height / 2);
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
          end: (now, _y, moved) => {
            this.brush = null;
            if (!moved) this.pick(x);
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
    const overview = this.overview.canvas;
    const rowOf = (x: number) => ((x - LEFT) / (this.overview.width - LEFT - RIGHT)) * this.timeline.rows;
    drag(overview, {
      start: (x) => {
        const [from, to] = [view.from, view.to];
        const px = (row: number) => LEFT + (row / this.timeline.rows) * (this.overview.width - LEFT - RIGHT);
        const whole = from === 0 && to === this.timeline.rows;
        const grip = Math.abs(x - px(from)) < 7 ? "from" : Math.abs(x - px(to)) < 7 ? "to" : "";
        const inside = !whole && x > px(from) && x < px(to);
        return {
          move: (now) => {
            if (grip === "from") view.show(Math.min(rowOf(now), to - 8), to);
            else if (grip === "to") view.show(from, Math.max(rowOf(now), from + 8));
            else if (inside) view.show(from + rowOf(now) - rowOf(x), to + rowOf(now) - rowOf(x));
            else view.show(Math.min(rowOf(x), rowOf(now)), Math.max(rowOf(x), rowOf(now)));
          },
          end: (_x, _y, moved) => {
            if (!moved) view.show(rowOf(x) - (to - from) / 2, rowOf(x) + (to - from) / 2);
          },
        };
      },
    });
    overview.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
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

  private pick(x: number): void {
    if (!this.columns || x < LEFT) return;
    this.view.choose(this.timeline.highRow[this.columns.high[this.columnAt(x)]]);
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
    if (!found) {
      this.found = null;
      return;
    }
    const { highRow } = this.timeline;
    const sums = new Float64Array(highRow.length + 1);
    for (let block = 0; block < found.length; block++) {
      if (!found[block]) continue;
      const first = upperBound(highRow, born[block] - 1);
      const last = upperBound(highRow, died[block] - 1);
      sums[first] += sizes[block];
      sums[last] -= sizes[block];
    }
    for (let index = 1; index < sums.length; index++) sums[index] += sums[index - 1];
    this.found = sums;
  }
}

export function rgbText([red, green, blue]: [number, number, number]): string {
  return `rgb(${red} ${green} ${blue})`;
}

function outlined(context: CanvasRenderingContext2D, text: string, x: number, y: number, color: string, around: string): void {
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = around;
  context.strokeText(text, x, y);
  context.fillStyle = color;
  context.fillText(text, x, y);
}
