// SPDX-License-Identifier: MIT OR Apache-2.0
// The answer, first on the page: the cause, the figures that decide, and what helps, ready to be copied. Its sentences
// are those of `tonnage explain`.

import type { Answer, Fact, Proposal, Story } from "../data";
import { el } from "../dom";
import { bytes, exact } from "../format";
import { copyButton, folded } from "../parts";

/** Lines that stand on the card; the others are folded. */
const FIRST = ["needs", "when"];

export function answerCard(story: Story): HTMLElement {
  const { answer } = story;
  const card = el("section", { id: "answer", class: `answer ${story.tone}`, "aria-labelledby": "answer-title" });
  const mark = story.tone === "good" ? "✓ " : story.tone === "bad" ? "✗ " : "";
  card.append(el("h2", { id: "answer-title" }, el("span", { "aria-hidden": "true" }, mark), capitalised(answer?.headline || story.verdict)));
  if (!answer) return card;
  if (story.verdict && story.tone !== "bad") card.append(el("p", { class: "verdict" }, story.verdict));
  if (answer.figures.length > 0) card.append(figures(answer));
  const lines = joined(answer.lines);
  const first = lines.filter((line) => FIRST.includes(line.name));
  const others = lines.filter((line) => !FIRST.includes(line.name));
  if (answer.fixes.length > 0) card.append(fixes(answer.fixes));
  if (first.length > 0) card.append(list(first));
  if (others.length > 0) card.append(folded("More of what tonnage explain says", list(others)));
  return card;
}

function capitalised(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A line without a name belongs to the one before. */
function joined(lines: Fact[]): { name: string; texts: string[] }[] {
  const all: { name: string; texts: string[] }[] = [];
  for (const { name, text } of lines) {
    const last = all.at(-1);
    if (name === "" && last) last.texts.push(text);
    else all.push({ name, texts: [text] });
  }
  return all;
}

function list(lines: { name: string; texts: string[] }[]): HTMLElement {
  return el("dl", { class: "lines" }, ...lines.flatMap(({ name, texts }) => [el("dt", {}, name), ...texts.map((text) => el("dd", {}, text))]));
}

function figures(answer: Answer): HTMLElement {
  return el(
    "dl",
    { class: "figures" },
    ...answer.figures.map((figure) => el("div", { class: figure.bad ? "bad" : null, title: exact(figure.bytes) }, el("dt", {}, figure.name), el("dd", {}, bytes(figure.bytes)))),
  );
}

function fixes(all: Proposal[]): HTMLElement {
  return el(
    "div",
    { class: "fixes" },
    el("h3", {}, "What helps"),
    el(
      "ol",
      {},
      ...all.map((fix) =>
        el(
          "li",
          {},
          el("span", { class: "advice" }, fix.advice),
          fix.paste ? el("div", { class: "paste" }, el("code", {}, fix.paste), copyButton(fix.paste)) : null,
          el("span", { class: "proof" }, fix.proof),
        ),
      ),
    ),
  );
}
