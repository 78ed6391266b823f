// SPDX-License-Identifier: MIT OR Apache-2.0
// Tables that hold what the pictures show. Sorted by a click on a heading; long ones are shown piece by piece.

import { el } from "./dom";
import { bytes, count } from "./format";

export type Cell = string | number | null;

export interface Heading {
  name: string;
  /** How its cells are set and sorted. */
  kind: "text" | "bytes" | "count" | "hex";
}

const PIECE = 100;

export class Table {
  readonly element: HTMLElement;
  private readonly body = el("tbody");
  private readonly head = el("tr");
  private readonly more = el("p", { class: "more-rows" });
  private rows: Cell[][] = [];
  private order = -1;
  private descending = true;
  private shown = PIECE;

  constructor(
    caption: string,
    private readonly headings: Heading[],
    private readonly chosen?: (row: number) => void,
  ) {
    for (const [index, heading] of headings.entries()) {
      const button = el("button", { type: "button", class: "sort" }, heading.name);
      button.addEventListener("click", () => {
        this.descending = this.order === index ? !this.descending : heading.kind !== "text";
        this.order = index;
        this.draw();
      });
      this.head.append(el("th", { scope: "col", class: heading.kind === "text" ? "" : "number" }, button));
    }
    const table = el("table", {}, el("caption", {}, caption), el("thead", {}, this.head), this.body);
    this.element = el("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption }, table, this.more);
  }

  set(rows: Cell[][]): void {
    this.rows = rows;
    this.shown = PIECE;
    this.draw();
  }

  private draw(): void {
    const { order, descending } = this;
    const numbers = this.rows.map((_, index) => index);
    if (order >= 0) {
      const compare = (one: Cell, other: Cell): number => {
        if (typeof one === "number" && typeof other === "number") return one - other;
        return String(one ?? "").localeCompare(String(other ?? ""), "en", { numeric: true });
      };
      numbers.sort((one, other) => (descending ? -1 : 1) * compare(this.rows[one][order], this.rows[other][order]));
    }
    [...this.head.children].forEach((cell, index) => {
      cell.setAttribute("aria-sort", index === order ? (descending ? "descending" : "ascending") : "none");
    });
    this.body.replaceChildren(
      ...numbers.slice(0, this.shown).map((number) => {
        const row = el("tr");
        this.rows[number].forEach((cell, index) => row.append(this.cell(cell, this.headings[index].kind, index, number)));
        return row;
      }),
    );
    const left = this.rows.length - this.shown;
    this.more.replaceChildren();
    if (left > 0) {
      const button = el("button", { type: "button" }, `show ${count(Math.min(left, 5 * PIECE))} more of ${count(left)}`);
      button.addEventListener("click", () => {
        this.shown += 5 * PIECE;
        this.draw();
      });
      this.more.append(button);
    }
  }

  private cell(value: Cell, kind: Heading["kind"], column: number, row: number): HTMLElement {
    const number = kind !== "text";
    const text =
      value === null
        ? "–"
        : typeof value === "string"
          ? value
          : kind === "bytes"
            ? bytes(value)
            : kind === "hex"
              ? `0x${value.toString(16)}`
              : count(value);
    const title = kind === "bytes" && typeof value === "number" ? `${count(value)} bytes` : null;
    const chosen = this.chosen;
    if (column === 0) {
      const inner = chosen ? el("button", { type: "button", class: "link" }, text) : text;
      if (inner instanceof HTMLElement && chosen) inner.addEventListener("click", () => chosen(row));
      return el("th", { scope: "row", class: number ? "number" : "", title }, inner);
    }
    return el("td", { class: number ? "number" : "", title }, text);
  }
}
