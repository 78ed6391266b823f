// SPDX-License-Identifier: MIT OR Apache-2.0
// Which moment stands for each column of pixels: the highest within it. The timeline and the address space use the
// same, so that what stands above each other belongs together.

import type { Timeline } from "./data";

export interface PixelColumns {
  /** The stretch with the highest moment of each column. */
  high: Int32Array;
  /** The stretch with the lowest. */
  low: Int32Array;
  /** The row that stands for each column, ascending. */
  row: Float64Array;
}

let latest: { timeline: Timeline; from: number; to: number; width: number; columns: PixelColumns } | null = null;

/** The columns of a range; both pictures request the same ones. */
export function pixelColumns(timeline: Timeline, from: number, to: number, width: number): PixelColumns {
  if (!latest || latest.timeline !== timeline || latest.from !== from || latest.to !== to || latest.width !== width) {
    latest = { timeline, from, to, width, columns: makeColumns(timeline, from, to, width) };
  }
  return latest.columns;
}

function makeColumns(timeline: Timeline, from: number, to: number, width: number): PixelColumns {
  const high = new Int32Array(width).fill(-1);
  const low = new Int32Array(width).fill(-1);
  const row = new Float64Array(width);
  const { start, highTotal, lowTotal } = timeline;
  const perRow = width / (to - from);
  const last = start.length - 1;
  for (let stretch = timeline.stretchAt(from); stretch <= last && start[stretch] < to; stretch++) {
    const end = stretch < last ? start[stretch + 1] : timeline.rows;
    const first = Math.max(0, Math.floor((start[stretch] - from) * perRow));
    const until = Math.min(width, Math.max(first + 1, Math.ceil((end - from) * perRow)));
    for (let column = first; column < until; column++) {
      if (high[column] < 0 || highTotal[stretch] > highTotal[high[column]]) high[column] = stretch;
      if (low[column] < 0 || lowTotal[stretch] < lowTotal[low[column]]) low[column] = stretch;
    }
  }
  let before = -1;
  for (let column = 0; column < width; column++) {
    const left = from + column / perRow;
    const right = from + (column + 1) / perRow;
    const best = timeline.highRow[high[column]];
    // Within a stretch every row is as good as another; across several the highest stands for all.
    const inside = best >= left && best < right;
    const chosen = inside ? best : Math.floor((left + right) / 2);
    before = Math.max(before, chosen);
    row[column] = before;
  }
  return { high, low, row };
}
