// SPDX-License-Identifier: MIT OR Apache-2.0
// The address space over time: which bytes of the segments were handed out, and where the holes were.
//
// Drawn into pixels by adding up how much of each pixel a block covers. A block changes a line of pixels only at its
// two ends (the sum over a line does the rest), so the work follows the number of blocks and not their area.

import { pixelColumns } from "./columns";
import { upperBound, type Blocks, type Timeline } from "./data";
import { Surface, type Palette, type Rgb } from "./dom";
import { bytes, count, plural } from "./format";
import { drag } from "./pointer";
import { LEFT, RIGHT } from "./axis";
import type { Band, View } from "./view";

const TOP = 4;
const BOTTOM = 4;
const MAX_OUTLINES = 1200;
const MAX_NAMES = 120;
/** Ranges lower than the first share a label; a label needs the second. */
const THIN = 8;
const NAMED = 18;

/** A size without decimals. */
function roughly(size: number): string {
  return bytes(size).replace(/\.\d+ /, " ");
}

/** Black or white, whichever can be read on a colour. */
function readable([red, green, blue]: Rgb): string {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000000" : "#ffffff";
}

/** A colour as the pixels of a canvas hold it, on machines that put the low byte first. */
function packed(red: number, green: number, blue: number): number {
  const clip = (value: number) => (value <= 0 ? 0 : value >= 255 ? 255 : (value + 0.5) | 0);
  return (255 << 24) | (clip(blue) << 16) | (clip(green) << 8) | clip(red);
}

export interface AddressHover {
  row: number | null;
  block(block: number, row: number, x: number, y: number): void;
  hole(address: number, row: number, inSegment: boolean, restShare: number, x: number, y: number): void;
  leave(): void;
}

export class AddressPicture {
  readonly surface: Surface;
  blocks: Blocks | null = null;
  selected = -1;
  private readonly image = document.createElement("canvas");
  private sums: Float32Array = new Float32Array();
  private held: Float32Array = new Float32Array();
  private touched: Uint8Array = new Uint8Array();
  private inner: CanvasRenderingContext2D | null = null;
  private pixels: ImageData | null = null;
  /** Where each range of addresses begins in the picture, in bytes with gaps, and the whole. */
  private offsets = new Float64Array();
  private gap = 0;
  private whole = 1;
  /** The stretch of the timeline in which each block is born and dies. */
  private bornIn = new Int32Array();
  private diedIn = new Int32Array();
  private segmentBornIn = new Int32Array();
  private segmentDiedIn = new Int32Array();
  private position = new Float64Array();
  private segmentPosition = new Float64Array();
  private rows: Float64Array = new Float64Array();
  /** Addresses at which segments begin, each once. */
  private begins = new Float64Array();
  /** The labels at the left, for tests. */
  names: string[] = [];
  private brush: [number, number, number, number] | null = null;
  /** When it was drawn last, and the timer of the finer picture. */
  private drawn = -1e9;
  private refining = 0;
  /** Whether it is on the screen, whether something changed while it was not, and the timer that then draws it. */
  private visible = false;
  private stale = true;
  private waiting = 0;

  constructor(
    private readonly timeline: Timeline,
    private readonly view: View,
    private readonly hover: AddressHover,
    private readonly colors: () => Palette,
    private readonly picked: (block: number, row: number) => void,
    label: string,
    private readonly band: Band = view,
  ) {
    this.surface = new Surface(label, 360, () => this.draw(true));
    this.surface.canvas.classList.add("main");
    new IntersectionObserver((entries) => {
      this.visible = entries.at(-1)?.isIntersecting ?? true;
      if (this.visible && this.stale) this.draw();
    }).observe(this.surface.element);
    this.watch();
  }

  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    this.begins = new Float64Array();
    const ranges = blocks.rangeBytes.length;
    let sum = 0;
    for (const size of blocks.rangeBytes) sum += size;
    this.gap = ranges > 1 ? Math.min(sum * 0.008, (sum * 0.05) / ranges) : 0;
    this.offsets = new Float64Array(ranges);
    let at = 0;
    for (let range = 0; range < ranges; range++) {
      this.offsets[range] = at;
      at += blocks.rangeBytes[range] + this.gap;
    }
    this.whole = Math.max(1, at - this.gap);
    const stretches = (values: Float64Array) => Int32Array.from(values, (row) => this.timeline.stretchAt(row));
    this.bornIn = stretches(blocks.born);
    this.diedIn = stretches(blocks.died);
    this.segmentBornIn = stretches(blocks.segmentBorn);
    this.segmentDiedIn = stretches(blocks.segmentDied);
    this.position = blocks.address.map((address) => this.positionOf(address));
    this.segmentPosition = blocks.segmentAddress.map((address) => this.positionOf(address));
    this.draw(true);
  }

  private positionOf(address: number): number {
    const { blocks } = this;
    if (!blocks || blocks.rangeAddress.length === 0) return 0;
    const range = Math.max(0, upperBound(blocks.rangeAddress, address) - 1);
    const inside = Math.min(Math.max(0, address - blocks.rangeAddress[range]), blocks.rangeBytes[range]);
    return this.offsets[range] + inside;
  }

  /** The address at a position of the picture, and whether it is one. */
  private addressAt(position: number): { address: number; range: number } | null {
    const { blocks } = this;
    if (!blocks || this.offsets.length === 0) return null;
    const range = Math.max(0, upperBound(this.offsets, position) - 1);
    const inside = position - this.offsets[range];
    return inside <= blocks.rangeBytes[range] ? { address: blocks.rangeAddress[range] + inside, range } : null;
  }

  draw(always = false): void {
    if (this.surface.width <= LEFT + RIGHT) return;
    this.stale = !this.visible && !always;
    clearTimeout(this.waiting);
    if (this.stale) {
      // Off the screen it can wait until nothing moves; pictures of the whole page show it, too.
      this.waiting = window.setTimeout(() => this.draw(true), 500);
      return;
    }
    // While pictures follow each other quickly every other line will do; the full one comes when they rest.
    const now = performance.now();
    const moving = now - this.drawn < 120;
    this.drawn = now;
    clearTimeout(this.refining);
    if (moving) {
      this.refining = window.setTimeout(() => {
        this.drawBase(this.lines, false, this.colors());
      }, 160);
    }
    this.drawBase(this.lines, moving, this.colors());
    this.drawPointer();
  }

  private get lines(): number {
    return Math.max(1, Math.floor(this.surface.height - TOP - BOTTOM));
  }

  /** Draws what moves with the pointer and the chosen moment. */
  drawPointer(): void {
    const { surface, view, lines } = this;
    const { width } = surface;
    if (this.stale) return;
    const colors = this.colors();
    const context = surface.beginAbove();
    const moment = Math.round(this.x(view.moment + 0.5)) + 0.5;
    const cursor = this.hover.row === null ? -1 : Math.round(this.x(this.hover.row)) + 0.5;
    for (const [at, color, dash] of [
      [moment, colors.text, []],
      [cursor, colors.muted, [3, 3]],
    ] as [number, string, number[]][]) {
      if (at < LEFT || at > width - RIGHT) continue;
      context.strokeStyle = color;
      context.lineWidth = 1;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, TOP + lines);
      context.stroke();
      context.setLineDash([]);
    }
    if (this.brush) {
      const [left, upper, right, lower] = this.brush;
      context.globalAlpha = 0.25;
      context.fillStyle = colors.accent;
      context.fillRect(Math.min(left, right), Math.min(upper, lower), Math.abs(right - left), Math.abs(lower - upper));
      context.globalAlpha = 1;
    }
  }

  private drawBase(lines: number, coarse: boolean, colors: Palette): void {
    const { surface, view, blocks, timeline } = this;
    const { width, height } = surface;
    const context = surface.begin();
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    if (!blocks) {
      context.fillStyle = colors.muted;
      context.textAlign = "left";
      context.fillText("reading blocks …", LEFT + 10, height / 2);
      return;
    }
    const plot = Math.floor(width - LEFT - RIGHT);
    // A timer may come after the picture has been taken away.
    if (plot <= 0) return;
    const columns = pixelColumns(timeline, view.from, view.to, plot);
    this.rows = columns.row;
    this.raster(blocks, columns.row, plot, coarse ? lines >> 1 : lines, colors);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, LEFT, TOP, plot, lines);
    this.outlines(context, blocks, lines, colors);
    this.pins(context, blocks, lines, colors);
    this.axis(context, blocks, lines, colors);
  }

  private x(row: number): number {
    const width = this.surface.width - LEFT - RIGHT;
    return LEFT + ((row - this.view.from) / (this.view.to - this.view.from)) * width;
  }

  /** Adds up what covers each pixel. */
  private raster(blocks: Blocks, rows: Float64Array, plot: number, lines: number, colors: Palette): void {
    const { view, band, timeline } = this;
    const stride = plot + 1;
    const size = stride * lines;
    // Red, green, blue and coverage of blocks lie side by side; coverage of segments apart.
    // All zero between pictures: what is added is taken away as it is read.
    if (this.touched.length < size) {
      this.sums = new Float32Array(4 * size);
      this.held = new Float32Array(size);
      this.touched = new Uint8Array(size);
    }
    const { sums, held, touched } = this;
    const topBytes = band.top * this.whole;
    const perByte = lines / ((band.bottom - band.top) * this.whole);
    // For each stretch, the first column that stands for a moment in it or later.
    const firstStretch = timeline.stretchAt(view.from);
    const lastStretch = timeline.stretchAt(view.to);
    const known = lastStretch - firstStretch + 2;
    const firstColumn = new Int32Array(known).fill(plot);
    const columnStretch = new Int32Array(plot);
    for (let column = plot - 1, stretch = known - 1; column >= 0; column--) {
      const of = timeline.stretchAt(rows[column]) - firstStretch;
      columnStretch[column] = of;
      while (stretch > of) firstColumn[stretch--] = column + 1;
      if (of >= 0 && of < known) firstColumn[of] = column;
      stretch = Math.min(stretch, of);
      if (column === 0) while (stretch >= 0) firstColumn[stretch--] = 0;
    }
    /** The first column whose moment is at this row or later. */
    const columnAt = (row: number, inStretch: number): number => {
      const stretch = inStretch - firstStretch;
      if (stretch < 0) return 0;
      if (stretch >= known) return plot;
      let column = firstColumn[stretch];
      while (column < plot && columnStretch[column] === stretch && rows[column] < row) column++;
      return column;
    };
    const add = (
      left: number,
      right: number,
      position: number,
      size: number,
      red: number,
      green: number,
      blue: number,
      segment: boolean,
    ): void => {
      const upper = (position - topBytes) * perByte;
      const lower = upper + size * perByte;
      if (lower <= 0 || upper >= lines) return;
      const first = Math.max(0, Math.floor(upper));
      const last = Math.min(lines - 1, Math.ceil(lower) - 1);
      for (let line = first; line <= last; line++) {
        const cover = Math.min(lower, line + 1) - Math.max(upper, line);
        const from = line * stride + left;
        const to = line * stride + right;
        touched[from] = 1;
        touched[to] = 1;
        if (segment) {
          held[from] += cover;
          held[to] -= cover;
        } else {
          const at = from * 4;
          const until = to * 4;
          sums[at] += cover * red;
          sums[at + 1] += cover * green;
          sums[at + 2] += cover * blue;
          sums[at + 3] += cover;
          sums[until] -= cover * red;
          sums[until + 1] -= cover * green;
          sums[until + 2] -= cover * blue;
          sums[until + 3] -= cover;
        }
      }
    };
    for (let segment = 0; segment < blocks.segmentBorn.length; segment++) {
      const left = columnAt(blocks.segmentBorn[segment], this.segmentBornIn[segment]);
      const right = columnAt(blocks.segmentDied[segment], this.segmentDiedIn[segment]);
      if (left < right) add(left, right, this.segmentPosition[segment], blocks.segmentBytes[segment], 0, 0, 0, true);
    }
    const { found } = view;
    const { born, died, bytes: sizes, category } = blocks;
    const [panelRed, panelGreen, panelBlue] = colors.panel;
    const dim = colors.categoryRgb.map(([red, green, blue]) => [
      panelRed + (red - panelRed) * 0.22,
      panelGreen + (green - panelGreen) * 0.22,
      panelBlue + (blue - panelBlue) * 0.22,
    ]);
    for (let block = 0; block < blocks.length; block++) {
      if (born[block] >= view.to) break;
      if (died[block] <= view.from) continue;
      const left = columnAt(born[block], this.bornIn[block]);
      const right = columnAt(died[block], this.diedIn[block]);
      if (left >= right) continue;
      const color = found && !found[block] ? dim[category[block]] : colors.categoryRgb[category[block]];
      add(left, right, this.position[block], sizes[block], color[0], color[1], color[2], false);
    }
    this.compose(blocks, rows, plot, lines, colors, stride);
  }

  private compose(
    blocks: Blocks,
    rows: Float64Array,
    plot: number,
    lines: number,
    colors: Palette,
    stride: number,
  ): void {
    const { image, sums, held, touched, band, timeline } = this;
    if (!this.pixels || image.width !== plot || image.height !== lines) {
      image.width = plot;
      image.height = lines;
      this.inner = image.getContext("2d", { alpha: false });
      this.pixels = this.inner?.createImageData(plot, lines) ?? null;
    }
    const { inner, pixels } = this;
    if (!inner || !pixels) return;
    const out = new Uint32Array(pixels.data.buffer);
    const [panelRed, panelGreen, panelBlue] = colors.panel;
    const [holeRed, holeGreen, holeBlue] = colors.hole;
    const [lineRed, lineGreen, lineBlue] = colors.holeLine;
    const [restRed, restGreen, restBlue] = colors.rest;
    const { grid_columns: gridColumns, grid_lines: gridLines } = blocks.facts;
    const hasGrid = blocks.grid.length > 0;
    const gridColumn = new Int32Array(plot);
    for (let column = 0; column < plot; column++) {
      gridColumn[column] = Math.min(gridColumns - 1, Math.floor((rows[column] / timeline.rows) * gridColumns));
    }
    const total = this.whole - this.gap * Math.max(0, this.offsets.length - 1);
    for (let line = 0; line < lines; line++) {
      let red = 0;
      let green = 0;
      let blue = 0;
      let cover = 0;
      let segment = 0;
      let gridAt = -1;
      if (hasGrid) {
        const position = (band.top + ((line + 0.5) / lines) * (band.bottom - band.top)) * this.whole;
        const range = Math.max(0, upperBound(this.offsets, position) - 1);
        if (position - this.offsets[range] <= blocks.rangeBytes[range]) {
          const flat = position - range * this.gap;
          gridAt = Math.min(gridLines - 1, Math.floor((flat / total) * gridLines)) * gridColumns;
        }
      }
      let cell = -1;
      let plain = 0;
      let dashed = 0;
      let at = line * stride;
      let to = line * plot;
      for (let column = 0; column < plot; column++, at++, to++) {
        const grid = gridAt >= 0 ? blocks.grid[gridAt + gridColumn[column]] : 0;
        // Most pixels are as the one before.
        if (touched[at] !== 0 || grid !== cell) {
          cell = grid;
          if (touched[at] !== 0) {
            const four = at * 4;
            red += sums[four];
            green += sums[four + 1];
            blue += sums[four + 2];
            cover += sums[four + 3];
            segment += held[at];
            sums[four] = 0;
            sums[four + 1] = 0;
            sums[four + 2] = 0;
            sums[four + 3] = 0;
            held[at] = 0;
            touched[at] = 0;
          }
          let covered = cover < 0.001 ? 0 : cover;
          // Blocks of a hostile recording may lie over each other.
          const shrink = covered > 1 ? 1 / covered : 1;
          if (covered > 1) covered = 1;
          let inSegment = segment < 0.001 ? 0 : segment;
          if (inSegment > 1) inSegment = 1;
          if (inSegment < covered) inSegment = covered;
          let free = inSegment - covered;
          const rest = Math.min(free, grid / 255);
          free -= rest;
          const none = 1 - inSegment;
          const r = red * shrink + rest * restRed + none * panelRed;
          const g = green * shrink + rest * restGreen + none * panelGreen;
          const b = blue * shrink + rest * restBlue + none * panelBlue;
          plain = packed(r + free * holeRed, g + free * holeGreen, b + free * holeBlue);
          dashed = packed(r + free * lineRed, g + free * lineGreen, b + free * lineBlue);
        }
        out[to] = ((column + line) & 7) === 0 ? dashed : plain;
      }
      // Beyond the last column nothing is shown, but ends are noted there.
      sums.fill(0, at * 4, at * 4 + 4);
      held[at] = 0;
      touched[at] = 0;
    }
    inner.putImageData(pixels, 0, 0);
  }

  /** Borders and names of blocks that are large on the screen. */
  private outlines(context: CanvasRenderingContext2D, blocks: Blocks, lines: number, colors: Palette): void {
    const { view, band } = this;
    const topBytes = band.top * this.whole;
    const perByte = lines / ((band.bottom - band.top) * this.whole);
    const smallest = 5 / perByte;
    const rowsPerPixel = (view.to - view.from) / Math.max(1, this.surface.width - LEFT - RIGHT);
    const shortest = rowsPerPixel * 5;
    const large: number[] = [];
    for (let block = 0; block < blocks.length; block++) {
      if (blocks.born[block] >= view.to) break;
      if (blocks.bytes[block] < smallest || blocks.died[block] <= view.from) continue;
      if (blocks.died[block] - blocks.born[block] < shortest) continue;
      const upper = (this.position[block] - topBytes) * perByte;
      if (upper < lines && upper + blocks.bytes[block] * perByte > 0) large.push(block);
    }
    if (large.length > MAX_OUTLINES) {
      const area = (block: number) => blocks.bytes[block] * (blocks.died[block] - blocks.born[block]);
      large.sort((one, other) => area(other) - area(one));
      large.length = MAX_OUTLINES;
    }
    let named = 0;
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, this.surface.width - LEFT - RIGHT, lines);
    context.clip();
    context.textAlign = "left";
    context.fillStyle = colors.background;
    context.globalAlpha = 0.5;
    const boxes = large.map((block) => {
      const left = Math.max(LEFT - 2, Math.round(this.x(blocks.born[block])));
      const right = Math.min(this.surface.width - RIGHT + 2, Math.round(this.x(blocks.died[block])));
      const upper = Math.round(TOP + (this.position[block] - topBytes) * perByte);
      return [left, right, upper, Math.round(blocks.bytes[block] * perByte)];
    });
    // The upper and the left edge only: the others are those of neighbours.
    for (const [left, right, upper, height] of boxes) {
      context.fillRect(left, upper, right - left, 1);
      context.fillRect(left, upper, 1, height);
    }
    context.globalAlpha = 1;
    large.forEach((block, index) => {
      const [left, right, upper, height] = boxes[index];
      if (block === this.selected) {
        context.strokeStyle = colors.text;
        context.lineWidth = 2;
        context.strokeRect(left + 1, upper + 1, right - left - 2, height - 2);
      }
      const from = Math.max(left, LEFT);
      const room = Math.floor((right - from - 10) / 6);
      if (height < 14 || room <= 10 || named >= MAX_NAMES) return;
      named++;
      const name = this.title(blocks, block);
      const dimmed = view.found && !view.found[block];
      context.fillStyle = dimmed ? colors.muted : readable(colors.categoryRgb[blocks.category[block]]);
      const at = Math.max(TOP + 8, Math.min(TOP + lines - 8, upper + height / 2));
      context.fillText(name.length > room ? `…${name.slice(name.length - room + 1)}` : name, from + 5, at);
    });
    context.restore();
  }

  /** Marks blocks that keep holes from being given back: however thin they are, an arrow points at each. */
  private pins(context: CanvasRenderingContext2D, blocks: Blocks, lines: number, colors: Palette): void {
    const { view, band } = this;
    if (this.band !== view) return;
    const topBytes = band.top * this.whole;
    const perByte = lines / ((band.bottom - band.top) * this.whole);
    const right = this.surface.width - RIGHT;
    for (const block of view.pins) {
      const from = Math.max(LEFT, this.x(blocks.born[block]));
      const to = Math.min(right, this.x(blocks.died[block]));
      const upper = TOP + (this.position[block] - topBytes) * perByte;
      const height = Math.max(2, blocks.bytes[block] * perByte);
      if (to <= from || upper + height < TOP || upper > TOP + lines) continue;
      context.strokeStyle = colors.warn;
      context.lineWidth = 1.5;
      context.strokeRect(from, upper, Math.max(2, to - from), height);
      const middle = Math.min(TOP + lines - 4, Math.max(TOP + 4, upper + height / 2));
      const tip = Math.max(LEFT + 9, from);
      context.fillStyle = colors.warn;
      context.strokeStyle = colors.background;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(tip, middle);
      context.lineTo(tip - 9, middle - 4.5);
      context.lineTo(tip - 9, middle + 4.5);
      context.closePath();
      context.fill();
      context.stroke();
    }
  }

  title(blocks: Blocks, block: number): string {
    const name = blocks.name[block] || blocks.module[block];
    return name ? blocks.text(name) : blocks.lineOf(blocks.stack[block]);
  }

  private axis(context: CanvasRenderingContext2D, blocks: Blocks, lines: number, colors: Palette): void {
    const { band } = this;
    const perByte = lines / ((band.bottom - band.top) * this.whole);
    context.fillStyle = colors.line;
    context.fillRect(LEFT - 1, TOP, 1, lines);
    context.textAlign = "right";
    // Neighbours of one size are one label, and so are those that are too thin for words.
    const groups: { upper: number; lower: number; first: number; last: number; size: string; bytes: number }[] = [];
    for (let range = 0; range < this.offsets.length; range++) {
      const upper = TOP + (this.offsets[range] - band.top * this.whole) * perByte;
      const lower = upper + blocks.rangeBytes[range] * perByte;
      if (lower < TOP || upper > TOP + lines) continue;
      context.fillStyle = colors.line;
      if (lower - upper > 2) context.fillRect(LEFT - 4, Math.max(TOP, upper), 3, Math.min(TOP + lines, lower) - Math.max(TOP, upper));
      const size = lower - upper < THIN ? "" : roughly(blocks.rangeBytes[range]);
      const before = groups.at(-1);
      if (before && before.size === size) Object.assign(before, { lower, last: range, bytes: before.bytes + blocks.rangeBytes[range] });
      else groups.push({ upper, lower, first: range, last: range, size, bytes: blocks.rangeBytes[range] });
    }
    this.names = [];
    context.fillStyle = colors.muted;
    const room = LEFT - 9;
    for (const { upper, lower, first, last, size, bytes: sum } of groups) {
      const [top, bottom] = [Math.max(TOP, upper), Math.min(TOP + lines, lower)];
      if (bottom - top < NAMED) continue;
      const number = last - first + 1;
      const each = size && number > 1 ? `${count(number)} × ${size}` : "";
      const text = each && context.measureText(each).width <= room ? each : roughly(sum);
      const inside = this.segmentsIn(blocks, first, last);
      const segments = [plural(inside, "segment"), "segments"].find((one) => context.measureText(one).width <= room);
      const both = this.band === this.view && inside > 0 && segments !== undefined && bottom - top >= NAMED + 12;
      const middle = (top + bottom) / 2;
      context.fillText(text, LEFT - 7, both ? middle - 6 : middle);
      if (both) context.fillText(segments, LEFT - 7, middle + 7);
      this.names.push(both ? `${text}, ${segments}` : text);
    }
  }

  /** How many segments ever began in these ranges. */
  private segmentsIn(blocks: Blocks, first: number, last: number): number {
    if (this.begins.length === 0) this.begins = Float64Array.from(new Set(blocks.segmentAddress)).sort();
    const end = blocks.rangeAddress[last] + blocks.rangeBytes[last];
    return upperBound(this.begins, end - 1) - upperBound(this.begins, blocks.rangeAddress[first] - 1);
  }

  private watch(): void {
    const { view, band } = this;
    const canvas = this.surface.canvas;
    drag(canvas, {
      start: (x, y, event) => {
        const brushing = event.shiftKey;
        const before = { from: view.from, to: view.to, top: band.top, bottom: band.bottom };
        const width = this.surface.width - LEFT - RIGHT;
        const height = this.surface.height - TOP - BOTTOM;
        return {
          move: (nowX, nowY) => {
            if (brushing) {
              this.brush = [x, y, nowX, nowY];
              view.changed("hover");
              return;
            }
            const shift = ((nowX - x) / width) * (before.to - before.from);
            view.show(before.from - shift, before.to - shift);
            if (before.bottom - before.top < 1) {
              const up = ((nowY - y) / height) * (before.bottom - before.top);
              band.showAddresses(before.top - up, before.bottom - up);
            }
          },
          end: (nowX, nowY, moved) => {
            this.brush = null;
            if (!moved) {
              this.pick(x, y);
            } else if (brushing) {
              const row = (at: number) => view.from + ((at - LEFT) / width) * (view.to - view.from);
              const share = (at: number) => band.top + ((at - TOP) / height) * (band.bottom - band.top);
              const [left, right] = [Math.min(x, nowX), Math.max(x, nowX)];
              const [upper, lower] = [Math.min(y, nowY), Math.max(y, nowY)];
              if (lower - upper > 12) band.showAddresses(share(upper), share(lower));
              if (right - left > 12) view.show(row(left), row(right));
            }
          },
        };
      },
      pinch: (factor, x) => view.zoom(factor, this.rowUnder(x)),
      hover: (x, y, event) => this.point(x, y, event),
      leave: () => this.hover.leave(),
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006);
          if (event.shiftKey) this.zoomAddresses(factor, (event.offsetY - TOP) / (this.surface.height - TOP - BOTTOM));
          else view.zoom(factor, this.rowUnder(event.offsetX));
        } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          view.pan((event.deltaX || event.deltaY) / this.surface.width);
        }
      },
      { passive: false },
    );
  }

  zoomAddresses(factor: number, share = 0.5): void {
    const { band } = this;
    const height = band.bottom - band.top;
    const around = band.top + share * height;
    band.showAddresses(around - share * height * factor, around + (1 - share) * height * factor);
  }

  private rowUnder(x: number): number {
    const column = Math.min(this.rows.length - 1, Math.max(0, Math.floor(x - LEFT)));
    return this.rows[column] ?? 0;
  }

  /** The drawn block at a place of the picture, if there is one. */
  private blockAt(x: number, y: number): { block: number; row: number; address: number | null } {
    const { blocks, band } = this;
    const row = this.rowUnder(x);
    const share = (y - TOP) / (this.surface.height - TOP - BOTTOM);
    const place = this.addressAt((band.top + share * (band.bottom - band.top)) * this.whole);
    let found = -1;
    if (blocks && place) {
      // Half a pixel of tolerance for thin ones.
      const slack = (0.5 * (band.bottom - band.top) * this.whole) / this.surface.height;
      for (let block = 0; block < blocks.length && blocks.born[block] <= row; block++) {
        if (row >= blocks.died[block]) continue;
        const inside = place.address - blocks.address[block];
        if (inside >= -slack && inside < blocks.bytes[block] + slack) {
          found = block;
          if (inside >= 0 && inside < blocks.bytes[block]) break;
        }
      }
    }
    return { block: found, row, address: place?.address ?? null };
  }

  private pick(x: number, y: number): void {
    const { block, row } = this.blockAt(x, y);
    this.selected = block;
    this.picked(block, row);
    this.draw();
  }

  private point(x: number, y: number, event: PointerEvent): void {
    const { blocks, view } = this;
    if (!blocks || x < LEFT || x > this.surface.width - RIGHT) {
      this.hover.leave();
      return;
    }
    const { block, row, address } = this.blockAt(x, y);
    this.hover.row = view.from + ((x - LEFT) / (this.surface.width - LEFT - RIGHT)) * (view.to - view.from);
    if (block >= 0) {
      this.hover.block(block, row, event.clientX, event.clientY);
    } else if (address !== null) {
      let inSegment = false;
      for (let segment = 0; segment < blocks.segmentBorn.length; segment++) {
        const inside = address - blocks.segmentAddress[segment];
        if (row >= blocks.segmentBorn[segment] && row < blocks.segmentDied[segment] && inside >= 0 && inside < blocks.segmentBytes[segment]) {
          inSegment = true;
          break;
        }
      }
      this.hover.hole(address, row, inSegment, this.restAt(row, address), event.clientX, event.clientY);
    } else {
      this.hover.leave();
    }
    view.changed("hover");
  }

  /** The share of the cell around an address that blocks cover which are not drawn one by one. */
  private restAt(row: number, address: number): number {
    const { blocks } = this;
    if (!blocks || blocks.grid.length === 0) return 0;
    const { grid_columns: columns, grid_lines: lines } = blocks.facts;
    const position = this.positionOf(address);
    const range = Math.max(0, upperBound(this.offsets, position) - 1);
    const total = this.whole - this.gap * Math.max(0, this.offsets.length - 1);
    const line = Math.min(lines - 1, Math.floor(((position - range * this.gap) / total) * lines));
    const column = Math.min(columns - 1, Math.floor((row / this.timeline.rows) * columns));
    return blocks.grid[line * columns + column] / 255;
  }
}
