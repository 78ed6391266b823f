// SPDX-License-Identifier: MIT OR Apache-2.0
// The findings, above the selection where the page is wide; a click shows the blocks of one.

import type { Finding } from "../data";
import { el, prose } from "../dom";
import { count } from "../format";
import { section } from "../parts";

export class FindingsPanel {
  readonly element: HTMLElement | null;
  private readonly buttons = new Map<number, HTMLButtonElement>();

  constructor(findings: Finding[], show: (number: number) => void) {
    if (findings.length === 0) {
      this.element = null;
      return;
    }
    const part = section("findings", findings.length === 1 ? "Finding" : "Findings", null);
    const list = el("ul", { class: "findings" });
    findings.forEach((finding, number) => {
      const item = el("li", {}, el("div", { class: "what" }, el("strong", {}, el("code", { class: "name" }, finding.code), " ", ...prose(finding.title)), el("p", {}, ...prose(finding.text))));
      if (finding.blocks > 0) {
        const text = finding.blocks === 1 ? "show its block" : `show its ${count(finding.blocks)} blocks`;
        const button = el("button", { type: "button", "aria-pressed": "false", title: "Mark them in every picture, and again to unmark (f)" }, text);
        button.addEventListener("click", () => show(number));
        this.buttons.set(number, button);
        item.append(button);
      }
      list.append(item);
    });
    part.append(list);
    this.element = part;
  }

  /** Which one is shown, or none. */
  choose(number: number | null): void {
    for (const [other, button] of this.buttons) button.setAttribute("aria-pressed", String(other === number));
  }
}
