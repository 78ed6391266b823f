// SPDX-License-Identifier: MIT OR Apache-2.0
// Who holds the bytes at one moment, as a picture: category, module, source line, tensor; or category and call stack.
//
// Built of real elements, so that it can be read aloud, tabbed to and printed. The rest beyond the drawn blocks
// is a separate part, so the widths are always true.

import { placeText, type Blocks, type Levels, type Timeline } from "./data";
import { el } from "./dom";
import { bytes, count, exact, plural, share } from "./format";
import type { Grouping, View } from "./view";

export interface Part {
  name: string;
  bytes: number;
  blocks: number;
  /** Blocks whose category torch itself named. */
  exact: number;
  /** Number of the category; -1 for a part that is not a block. */
  category: number;
  kind: "root" | "category" | "module" | "line" | "tensor" | "frame" | "rest" | "free" | "context";
  children: Map<string, Part>;
  /** The largest of its blocks, to show a stack. */
  example: number;
  /** Its drawn blocks. */
  members: number[];
  found: boolean;
}

function part(name: string, kind: Part["kind"], category: number): Part {
  return { name, bytes: 0, blocks: 0, exact: 0, category, kind, children: new Map(), example: -1, members: [], found: false };
}

function child(parent: Part, key: string, name: string, kind: Part["kind"]): Part {
  let found = parent.children.get(key);
  if (!found) {
    found = part(name, kind, parent.category);
    parent.children.set(key, found);
  }
  return found;
}

/** The parts of a moment. */
export function parts(timeline: Timeline, blocks: Blocks, levels: Levels, grouping: Grouping, found: Uint8Array | null): Part {
  const root = part("in use", "root", -1);
  const byCategory = timeline.facts.categories.map((name, category) => part(name, "category", category));
  const { row } = levels;
  for (let block = 0; block < blocks.length && blocks.born[block] <= row; block++) {
    if (row >= blocks.died[block]) continue;
    const path: Part[] = [byCategory[blocks.category[block]]];
    const go = (key: string, name: string, kind: Part["kind"]) => path.push(child(path[path.length - 1], key, name, kind));
    const stack = blocks.stack[block];
    if (grouping !== "stack") {
      const module = blocks.text(blocks.module[block]);
      if (module) {
        for (const piece of module.split(".")) {
          const name = grouping === "kind" && /^\d+$/.test(piece) ? "*" : piece;
          go(`m${name}`, name, "module");
        }
      }
      const line = blocks.lineOf(stack);
      go(`l${line}`, line, "line");
    } else {
      for (const place of blocks.places(stack).reverse()) {
        const text = placeText(place);
        go(`f${text}`, `${text} ${place.function}`, "frame");
      }
    }
    // Equal blocks are one part, which shows how many they are.
    const label = tensorLabel(blocks, block, grouping !== "module");
    go(`t${label}`, label, "tensor");
    for (const one of path) {
      one.bytes += blocks.bytes[block];
      one.blocks += 1;
      one.members.push(block);
      one.exact += blocks.isExact[block];
      if (one.example < 0 || blocks.bytes[block] > blocks.bytes[one.example]) one.example = block;
      if (found?.[block]) one.found = true;
    }
  }
  for (const [category, of] of byCategory.entries()) {
    const missing = levels.byCategory[category] - of.bytes;
    if (missing > 0) {
      const rest = part("smaller blocks, not listed one by one", "rest", category);
      rest.bytes = missing;
      of.children.set("rest", rest);
      of.bytes += missing;
    }
    if (of.bytes > 0) root.children.set(of.name, of);
  }
  const free = levels.reserved - levels.allocated;
  if (timeline.hasReserved && free > 0) {
    const of = part("cached by PyTorch", "free", -1);
    of.bytes = free;
    root.children.set("free", of);
  }
  if (timeline.facts.context > 0) {
    const of = part("context", "context", -1);
    of.bytes = timeline.facts.context;
    root.children.set("context", of);
  }
  for (const one of root.children.values()) {
    root.bytes += one.bytes;
    root.blocks += one.blocks;
    root.found ||= one.found;
  }
  for (const one of root.children.values()) fold(one);
  countEqual(root);
  return root;
}

/** The name and shape of a block, else its size; with layers together, numbers in names are left out. */
export function tensorLabel(blocks: Blocks, block: number, together: boolean): string {
  const name = blocks.text(blocks.name[block]);
  const known = [together ? withoutNumbers(name) : name, blocks.text(blocks.shape[block])].filter(Boolean).join(" ");
  return known || bytes(blocks.bytes[block]);
}

/** `layers.3.weight` as `layers.*.weight`. */
export function withoutNumbers(path: string): string {
  return path.replace(/(^|[.\s])\d+(?=[.\s]|$)/g, "$1*");
}

/** Puts the number of blocks before the name of those that are equal. */
function countEqual(parent: Part): void {
  for (const one of parent.children.values()) {
    if (one.kind === "tensor" && one.blocks > 1) one.name = `${count(one.blocks)} × ${one.name}`;
    countEqual(one);
  }
}

/** Joins a module with its only child: `model.layers` instead of two levels. */
function fold(parent: Part): void {
  for (const one of parent.children.values()) {
    while (one.kind === "module" && one.children.size === 1) {
      const [only] = one.children.values();
      if (only.kind !== "module") break;
      one.name = `${one.name}.${only.name}`;
      one.children = only.children;
    }
    fold(one);
  }
}

export function sorted(parent: Part): Part[] {
  return [...parent.children.values()].sort((one, other) => other.bytes - one.bytes);
}

export interface IcicleHover {
  part(part: Part, path: Part[], whole: number, x: number, y: number): void;
  leave(): void;
}

const ROW = 24;
const NARROW = 4;

export class Icicle {
  readonly element = el("div", { class: "icicle", role: "group", "aria-label": "Parts of the chosen moment" });
  readonly trail = el("nav", { class: "trail", "aria-label": "Where in the parts" });
  private tree: Part | null = null;
  private path: Part[] = [];
  private focusKey = "";

  constructor(
    private readonly view: View,
    private readonly hover: IcicleHover,
    private readonly picked: (part: Part, path: Part[]) => void,
  ) {
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("pointerleave", () => this.hover.leave());
  }

  /** Shows other parts; stays at the same place in them if it is still there. */
  set(tree: Part): void {
    const names = this.path.slice(1).map((one) => one.name);
    this.tree = tree;
    this.path = [tree];
    for (const name of names) {
      const next = [...this.path[this.path.length - 1].children.values()].find((one) => one.name === name);
      if (!next) break;
      this.path.push(next);
    }
    this.draw();
  }

  up(): boolean {
    if (this.path.length <= 1) return false;
    this.path.pop();
    this.draw();
    return true;
  }

  private width = 0;

  private draw(): void {
    const { tree, element } = this;
    const width = element.clientWidth;
    if (!tree || width === 0) return;
    this.width = width;
    const cells: HTMLElement[] = [];
    let depth = 0;
    const whole = tree.bytes;
    const put = (one: Part, path: Part[], left: number, wide: number, level: number): void => {
      depth = Math.max(depth, level + 1);
      const text = `${one.name} ${bytes(one.bytes)}`;
      const dim = this.view.found && !one.found ? " dim" : "";
      const cell = el(
        "button",
        {
          class: `cell k-${one.kind}${one.category >= 0 ? ` c${one.category}` : ""}${dim}`,
          tabindex: -1,
          type: "button",
          "aria-label": `${one.name}, ${exact(one.bytes)}, ${share(one.bytes, whole)}${one.blocks ? `, ${plural(one.blocks, "block")}` : ""}`,
          style: `left:${left.toFixed(2)}px;width:${Math.max(1, wide - 1).toFixed(2)}px;top:${level * ROW}px`,
          "data-key": path.map((of) => of.name).join("\u0000"),
        },
        wide > 34 ? text : "",
      );
      cell.addEventListener("click", () => {
        this.path = path;
        this.focusKey = cell.dataset["key"] ?? "";
        this.draw();
        this.picked(one, path);
      });
      cell.addEventListener("pointermove", (event) => this.hover.part(one, path, whole, event.clientX, event.clientY));
      cell.addEventListener("focus", () => {
        this.focusKey = cell.dataset["key"] ?? "";
        const box = cell.getBoundingClientRect();
        if (cell.matches(":focus-visible")) this.hover.part(one, path, whole, box.left + 12, box.bottom);
      });
      cells.push(cell);
    };
    this.path.forEach((one, level) => put(one, this.path.slice(0, level + 1), 0, width, level));
    const down = (parent: Part, path: Part[], left: number, wide: number, level: number): void => {
      let at = left;
      let small = 0;
      let smallBytes = 0;
      for (const one of sorted(parent)) {
        const size = parent.bytes > 0 ? (one.bytes / parent.bytes) * wide : 0;
        if (size < NARROW) {
          small += 1;
          smallBytes += one.bytes;
          continue;
        }
        const to = [...path, one];
        put(one, to, at, size, level);
        down(one, to, at, size, level + 1);
        at += size;
      }
      const rest = (smallBytes / parent.bytes) * wide;
      if (small > 0 && rest >= 2) {
        depth = Math.max(depth, level + 1);
        cells.push(
          el(
            "div",
            {
              class: "cell more",
              title: `${plural(small, "smaller part")}, together ${exact(smallBytes)}; click the part above to see them`,
              style: `left:${at.toFixed(2)}px;width:${Math.max(1, rest - 1).toFixed(2)}px;top:${level * ROW}px`,
            },
            rest > 60 ? `${count(small)} smaller` : "",
          ),
        );
      }
    };
    const last = this.path[this.path.length - 1];
    down(last, this.path, 0, width, this.path.length);
    const hadFocus = element.contains(document.activeElement);
    element.replaceChildren(...cells);
    element.style.height = `${depth * ROW}px`;
    const wanted =
      (cells.find((cell) => cell.dataset["key"] === this.focusKey && cell instanceof HTMLButtonElement) as HTMLElement) ??
      cells[0];
    if (wanted) {
      wanted.tabIndex = 0;
      if (hadFocus) wanted.focus();
    }
    this.trail.replaceChildren(
      ...this.path.flatMap((one, level) => [
        level > 0 ? el("span", { "aria-hidden": "true" }, " › ") : null,
        level === this.path.length - 1
          ? el("strong", {}, one.name)
          : el(
              "button",
              {
                type: "button",
                class: "link",
                click: () => {
                  this.path = this.path.slice(0, level + 1);
                  this.draw();
                },
              },
              one.name,
            ),
      ].filter((node): node is HTMLElement => node !== null)),
      ` ${bytes(last.bytes)}, ${share(last.bytes, whole)}`,
    );
  }

  /** Redraws if the width changed while hidden. */
  refresh(): void {
    if (this.element.clientWidth !== this.width) this.draw();
  }

  private key(event: KeyboardEvent): void {
    const cell = document.activeElement;
    if (!(cell instanceof HTMLElement) || !this.element.contains(cell)) return;
    const box = cell.getBoundingClientRect();
    const all = [...this.element.querySelectorAll<HTMLElement>("button.cell")];
    const near = (test: (other: DOMRect) => boolean, distance: (other: DOMRect) => number) => {
      let best: HTMLElement | null = null;
      let bestDistance = Infinity;
      for (const other of all) {
        const rect = other.getBoundingClientRect();
        if (other === cell || !test(rect)) continue;
        const far = distance(rect);
        if (far < bestDistance) [best, bestDistance] = [other, far];
      }
      return best;
    };
    const sameRow = (other: DOMRect) => Math.abs(other.top - box.top) < 2;
    const over = (other: DOMRect) => other.left < box.right - 1 && other.right > box.left + 1;
    let next: HTMLElement | null = null;
    switch (event.key) {
      case "ArrowRight":
        next = near((other) => sameRow(other) && other.left > box.left, (other) => other.left - box.left);
        break;
      case "ArrowLeft":
        next = near((other) => sameRow(other) && other.left < box.left, (other) => box.left - other.left);
        break;
      case "ArrowDown":
        next = near((other) => over(other) && other.top > box.top + 2 && other.top < box.top + ROW + 4, (other) => other.left);
        break;
      case "ArrowUp":
        next = near((other) => over(other) && other.top < box.top - 2 && other.top > box.top - ROW - 4, (other) => other.left);
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (next) {
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  }
}
