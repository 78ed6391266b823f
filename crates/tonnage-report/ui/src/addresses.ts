// SPDX-License-Identifier: MIT OR Apache-2.0
// The address space over time: which bytes of the segments were handed out, and where the holes were.
//
// Drawn into pixels by adding up how much of each pixel a block covers. A block changes a line of pixels only at its
// two ends (the sum over a line does the rest), so the work follows the number of blocks and not their area.

import { pixelColumns } from "./columns";
import { upperBound, type Blocks, type Timeline } from "./data";
import { Surface, type Palette } from "./dom";
import { bytes } from "./format";
import { drag } from "./pointer";
import { LEFT, RIGHT } from "./timeline";
import type { View } from "./view";

const TOP = 4;
const BOTTOM = 4;

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
  private brush: [number, number, number, number] | null = null;

  constructor(
    private readonly timeline: Timeline,
    private readonly view: View,
    private readonly hover: AddressHover,
    private readonly colors: () => Palette,
    private readonly picked: (block: number, row: number) => void,
  ) {
    this.surface = new Surface(
      "Address space over time: live blocks and holes inside segments. Arrow keys pan, plus and minus zoom; with Shift they move and zoom in addresses. The table below lists the blocks.",
      360,
      () => this.draw(),
    );
    this.surface.canvas.classList.add("main");
    this.watch();
  }

  setBlocks(blocks: Blocks): void {
    this.blocks = blocks;
    const ranges = blocks.rangeBytes.length;
    let sum = 0;
    for (const size of blocks.rangeBytes) sum += size;
    this.gap = ranges > 1 ? Math.min(sum * 0.008, (sum * 0.2) / ranges) : 0;
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
    this.draw();
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

  draw(): void {
    const { surface, view, blocks, timeline } = this;
    const { width, height } = surface;
    if (width <= LEFT + RIGHT || height <= 0) return;
    const colors = this.colors();
    const context = surface.begin();
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    if (!blocks) {
      context.fillStyle = colors.muted;
      context.fillText("reading blocks …", LEFT + 10, height / 2);
      return;
    }
    const plot = Math.floor(width - LEFT - RIGHT);
    const lines = Math.floor(height - TOP - BOTTOM);
    const columns = pixelColumns(timeline, view.from, view.to, plot);
    this.rows = columns.row;
    this.raster(blocks, columns.row, plot, lines, colors);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, LEFT, TOP);
    this.outlines(context, blocks, lines, colors);
    this.axis(context, blocks, lines, colors);
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

  private x(row: number): number {
    const width = this.surface.width - LEFT - RIGHT;
    return LEFT + ((row - this.view.from) / (this.view.to - this.view.from)) * width;
  }

  /** Adds up what covers each pixel. */
  private raster(blocks: Blocks, rows: Float64Array, plot: number, lines: number, colors: Palette): void {
    const { view, timeline } = this;
    const stride = plot + 1;
    const layer = stride * lines;
    // Five layers: red, green, blue and coverage of blocks, coverage of segments.
    if (this.sums.length < 5 * layer) this.sums = new Float32Array(5 * layer);
    const sums = this.sums;
    sums.fill(0, 0, 5 * layer);
    const topBytes = view.top * this.whole;
    const perByte = lines / ((view.bottom - view.top) * this.whole);
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
        if (segment) {
          sums[4 * layer + from] += cover;
          sums[4 * layer + to] -= cover;
        } else {
          sums[from] += cover * red;
          sums[to] -= cover * red;
          sums[layer + from] += cover * green;
          sums[layer + to] -= cover * green;
          sums[2 * layer + from] += cover * blue;
          sums[2 * layer + to] -= cover * blue;
          sums[3 * layer + from] += cover;
          sums[3 * layer + to] -= cover;
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
    this.compose(blocks, rows, plot, lines, colors, stride, layer);
  }

  private compose(
    blocks: Blocks,
    rows: Float64Array,
    plot: number,
    lines: number,
    colors: Palette,
    stride: number,
    layer: number,
  ): void {
    const { image, sums, view, timeline } = this;
    if (image.width !== plot || image.height !== lines) {
      image.width = plot;
      image.height = lines;
    }
    const inner = image.getContext("2d", { alpha: false });
    if (!inner) return;
    const pixels = inner.createImageData(plot, lines);
    const out = pixels.data;
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
        const position = (view.top + ((line + 0.5) / lines) * (view.bottom - view.top)) * this.whole;
        const range = Math.max(0, upperBound(this.offsets, position) - 1);
        if (position - this.offsets[range] <= blocks.rangeBytes[range]) {
          const flat = position - range * this.gap;
          gridAt = Math.min(gridLines - 1, Math.floor((flat / total) * gridLines)) * gridColumns;
        }
      }
      for (let column = 0; column < plot; column++) {
        const at = line * stride + column;
        red += sums[at];
        green += sums[layer + at];
        blue += sums[2 * layer + at];
        cover += sums[3 * layer + at];
        segment += sums[4 * layer + at];
        let covered = cover < 0.001 ? 0 : cover;
        // Blocks of a hostile recording may lie over each other.
        const shrink = covered > 1 ? 1 / covered : 1;
        covered = Math.min(1, covered);
        const held = Math.min(1, Math.max(covered, segment < 0.001 ? 0 : segment));
        let free = held - covered;
        const rest = gridAt >= 0 ? Math.min(free, blocks.grid[gridAt + gridColumn[column]] / 255) : 0;
        free -= rest;
        const none = 1 - held;
        const dash = ((column + line) & 7) === 0;
        const to = (line * plot + column) * 4;
        out[to] = red * shrink + free * (dash ? lineRed : holeRed) + rest * restRed + none * panelRed;
        out[to + 1] = green * shrink + free * (dash ? lineGreen : holeGreen) + rest * restGreen + none * panelGreen;
        out[to + 2] = blue * shrink + free * (dash ? lineBlue : holeBlue) + rest * restBlue + none * panelBlue;
        out[to + 3] = 255;
      }
    }
    inner.putImageData(pixels, 0, 0);
  }

  /** Borders and names of blocks that are large on the screen. */
  private outlines(context: CanvasRenderingContext2D, blocks: Blocks, lines: number, colors: Palette): void {
    const { view } = this;
    const topBytes = view.top * this.whole;
    const perByte = lines / ((view.bottom - view.top) * this.whole);
    const smallest = 5 / perByte;
    const rowsPerPixel = (view.to - view.from) / Math.max(1, this.surface.width - LEFT - RIGHT);
    const shortest = rowsPerPixel * 5;
    let drawn = 0;
    let named = 0;
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, this.surface.width - LEFT - RIGHT, lines);
    context.clip();
    context.lineWidth = 1;
    context.textAlign = "left";
    for (let block = 0; block < blocks.length && drawn < 3000; block++) {
      if (blocks.born[block] >= view.to) break;
      if (blocks.bytes[block] < smallest || blocks.died[block] <= view.from) continue;
      if (blocks.died[block] - blocks.born[block] < shortest) continue;
      const upper = TOP + (this.position[block] - topBytes) * perByte;
      const height = blocks.bytes[block] * perByte;
      if (upper + height < TOP || upper > TOP + lines) continue;
      const left = Math.max(LEFT - 2, this.x(blocks.born[block]));
      const right = Math.min(this.surface.width - RIGHT + 2, this.x(blocks.died[block]));
      if (right - left < 5) continue;
      drawn++;
      context.strokeStyle = block === this.selected ? colors.text : colors.background;
      context.globalAlpha = block === this.selected ? 1 : 0.55;
      context.strokeRect(Math.round(left) + 0.5, Math.round(upper) + 0.5, Math.round(right - left) - 1, Math.round(height) - 1);
      context.globalAlpha = 1;
      if (height >= 14 && right - left > 70 && named < 300) {
        const name = this.title(blocks, block);
        const room = Math.floor((right - Math.max(left, LEFT) - 10) / 6);
        if (room > 6) {
          named++;
          const text = name.length > room ? `…${name.slice(name.length - room + 1)}` : name;
          const at = Math.max(TOP + 8, Math.min(TOP + lines - 8, upper + height / 2));
          context.lineWidth = 3;
          context.strokeStyle = colors.background;
          context.strokeText(text, Math.max(left, LEFT) + 5, at);
          context.fillStyle = colors.text;
          context.fillText(text, Math.max(left, LEFT) + 5, at);
          context.lineWidth = 1;
        }
      }
    }
    context.restore();
  }

  title(blocks: Blocks, block: number): string {
    const name = blocks.name[block] || blocks.module[block];
    return name ? blocks.text(name) : blocks.lineOf(blocks.stack[block]);
  }

  private axis(context: CanvasRenderingContext2D, blocks: Blocks, lines: number, colors: Palette): void {
    const { view } = this;
    const perByte = lines / ((view.bottom - view.top) * this.whole);
    context.fillStyle = colors.line;
    context.fillRect(LEFT - 1, TOP, 1, lines);
    context.textAlign = "right";
    let free = -1e9;
    for (let range = 0; range < this.offsets.length; range++) {
      const upper = TOP + (this.offsets[range] - view.top * this.whole) * perByte;
      const lower = upper + blocks.rangeBytes[range] * perByte;
      if (lower < TOP || upper > TOP + lines) continue;
      context.fillStyle = colors.line;
      if (lower - upper > 2) context.fillRect(LEFT - 4, Math.max(TOP, upper), 3, Math.min(TOP + lines, lower) - Math.max(TOP, upper));
      const middle = (Math.max(TOP, upper) + Math.min(TOP + lines, lower)) / 2;
      if (middle - 7 > free && lower - upper >= 8) {
        context.fillStyle = colors.muted;
        context.fillText(bytes(blocks.rangeBytes[range]).replace(/\.\d+ /, " "), LEFT - 7, middle);
        free = middle + 7;
      }
    }
  }

  private watch(): void {
    const { view } = this;
    const canvas = this.surface.canvas;
    drag(canvas, {
      start: (x, y, event) => {
        const brushing = event.shiftKey;
        const before = { from: view.from, to: view.to, top: view.top, bottom: view.bottom };
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
              view.showAddresses(before.top - up, before.bottom - up);
            }
          },
          end: (nowX, nowY, moved) => {
            this.brush = null;
            if (!moved) {
              this.pick(x, y);
            } else if (brushing) {
              const row = (at: number) => view.from + ((at - LEFT) / width) * (view.to - view.from);
              const share = (at: number) => view.top + ((at - TOP) / height) * (view.bottom - view.top);
              const [left, right] = [Math.min(x, nowX), Math.max(x, nowX)];
              const [upper, lower] = [Math.min(y, nowY), Math.max(y, nowY)];
              if (lower - upper > 12) view.showAddresses(share(upper), share(lower));
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
    const { view } = this;
    const height = view.bottom - view.top;
    const around = view.top + share * height;
    view.showAddresses(around - share * height * factor, around + (1 - share) * height * factor);
  }

  private rowUnder(x: number): number {
    const column = Math.min(this.rows.length - 1, Math.max(0, Math.floor(x - LEFT)));
    return this.rows[column] ?? 0;
  }

  /** The drawn block at a place of the picture, if there is one. */
  private blockAt(x: number, y: number): { block: number; row: number; address: number | null } {
    const { blocks, view } = this;
    const row = this.rowUnder(x);
    const share = (y - TOP) / (this.surface.height - TOP - BOTTOM);
    const place = this.addressAt((view.top + share * (view.bottom - view.top)) * this.whole);
    let found = -1;
    if (blocks && place) {
      // Half a pixel of tolerance for thin ones.
      const slack = (0.5 * (view.bottom - view.top) * this.whole) / this.surface.height;
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
