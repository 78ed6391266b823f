// SPDX-License-Identifier: MIT OR Apache-2.0
// Pieces that several panels are made of.

import { el } from "./dom";

/** How a picture is read, on request. */
export function how(...paragraphs: string[]): HTMLElement {
  return el("details", { class: "how" }, el("summary", {}, "How to read this"), ...paragraphs.map((text) => el("p", {}, text)));
}

/** Something that is there but folded away. */
export function folded(title: string, ...children: HTMLElement[]): HTMLElement {
  return el("details", {}, el("summary", {}, title), ...children);
}

function head(id: string, title: string, sum: HTMLElement | null, tools: HTMLElement[]): (HTMLElement | null)[] {
  return [el("h2", { id: `${id}-title` }, title), sum, tools.length ? el("div", { class: "section-tools" }, ...tools) : null];
}

export function section(id: string, title: string, sum: HTMLElement | null, tools: HTMLElement[] = []): HTMLElement {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("div", { class: "section-head" }, ...head(id, title, sum, tools)));
}

/** A section whose content is folded away until its heading is clicked; its pictures are drawn then. */
export function foldedSection(id: string, title: string, sum: string, opened: () => void, ...content: (HTMLElement | null)[]): HTMLElement {
  const details = el("details", {}, el("summary", {}, el("h2", { id: `${id}-title` }, title), el("span", { class: "sum" }, sum)), ...content);
  details.addEventListener("toggle", () => {
    if (details.open) opened();
  });
  return el("section", { id, class: "folded", "aria-labelledby": `${id}-title` }, details);
}

/** A button whose accessible name holds what is written on it. */
export function button(text: string, label: string, click: () => void): HTMLButtonElement {
  const spoken = label.toLowerCase().includes(text.toLowerCase()) ? label : `${text}: ${label}`;
  return el("button", { type: "button", "aria-label": spoken, title: label, click }, text);
}

/** A small button with a sign on it, for the edge of a picture. */
export function iconButton(sign: string, label: string, click: () => void): HTMLButtonElement {
  return el("button", { type: "button", class: "icon", "aria-label": label, title: label, click }, el("span", { "aria-hidden": "true" }, sign));
}

/** A button that copies a text and confirms it. */
export function copyButton(text: string): HTMLButtonElement {
  const copy = el("button", { type: "button", class: "copy" }, "copy");
  let timer = 0;
  copy.addEventListener("click", () => {
    void toClipboard(text).then((copied) => {
      copy.textContent = copied ? "copied ✓" : "select it and copy";
      clearTimeout(timer);
      timer = window.setTimeout(() => (copy.textContent = "copy"), 2500);
    });
  });
  return copy;
}

async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages opened from a file have no clipboard in some browsers; the old way still works there.
    const area = el("textarea", { "aria-hidden": "true", class: "visually-hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
