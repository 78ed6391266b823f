// SPDX-License-Identifier: MIT OR Apache-2.0
// Who holds the bytes at one moment, as a list: what one line made for one purpose and one holder keeps is one group,
// and equal blocks in it are counted and not repeated.

import type { Blocks, Timeline } from "./data";
import { tensorLabel, withoutNumbers } from "./icicle";
import { bytes, count } from "./format";

export interface Group {
  bytes: number;
  /** The drawn blocks of it. */
  blocks: number[];
  category: number;
  /** The holder; empty where Python was not queried. */
  holder: string;
  module: string;
  line: string;
}

/** Groups of blocks, the largest first. */
export function group(blocks: Blocks, members: Iterable<number>): Group[] {
  const groups = new Map<string, Group>();
  for (const block of members) {
    const holder = blocks.text(blocks.holder[block]);
    const module = withoutNumbers(blocks.text(blocks.module[block]));
    const line = blocks.lineOf(blocks.stack[block]);
    const category = blocks.category[block];
    const key = [category, holder, module, line].join("\u0000");
    let found = groups.get(key);
    if (!found) {
      found = { bytes: 0, blocks: [], category, holder, module, line };
      groups.set(key, found);
    }
    found.bytes += blocks.bytes[block];
    found.blocks.push(block);
  }
  return [...groups.values()].sort((one, other) => other.bytes - one.bytes);
}

/** The drawn blocks alive at a row. */
export function alive(blocks: Blocks, row: number): number[] {
  const found: number[] = [];
  for (let block = 0; block < blocks.length && blocks.born[block] <= row; block++) {
    if (row < blocks.died[block]) found.push(block);
  }
  return found;
}

/** Equal blocks with their number: `32 × bfloat16[61440, 4096]`, or `32 × 480.00 MiB` without a shape. */
export function equal(blocks: Blocks, members: readonly number[]): { label: string; blocks: number[]; bytes: number }[] {
  const kinds = new Map<string, { label: string; blocks: number[]; bytes: number }>();
  for (const block of members) {
    const shape = blocks.text(blocks.shape[block]);
    const key = `${shape}\u0000${blocks.bytes[block]}`;
    let kind = kinds.get(key);
    if (!kind) {
      kind = { label: shape || bytes(blocks.bytes[block]), blocks: [], bytes: 0 };
      kinds.set(key, kind);
    }
    kind.blocks.push(block);
    kind.bytes += blocks.bytes[block];
  }
  const all = [...kinds.values()].sort((one, other) => other.bytes - one.bytes);
  for (const kind of all) if (kind.blocks.length > 1) kind.label = `${count(kind.blocks.length)} × ${kind.label}`;
  return all;
}

/** The name of a group, in a few words. */
export function groupLabel(blocks: Blocks, of: Group): string {
  if (of.blocks.length === 1) return tensorLabel(blocks, of.blocks[0], false);
  const kinds = equal(blocks, of.blocks);
  if (kinds.length === 1) return kinds[0].label;
  if (kinds.length === 2) return `${kinds[0].label}, ${kinds[1].label}`;
  let [least, most] = [Infinity, 0];
  for (const block of of.blocks) {
    least = Math.min(least, blocks.bytes[block]);
    most = Math.max(most, blocks.bytes[block]);
  }
  return `${count(of.blocks.length)} blocks, ${bytes(least)} to ${bytes(most)}`;
}

/** Where a group comes from: its holder, its purpose, its module and its line. */
export function groupPlace(timeline: Timeline, of: Group): string {
  return [of.holder, timeline.facts.categories[of.category], of.module ? `in ${of.module}` : "", of.line].filter(Boolean).join(" · ");
}
