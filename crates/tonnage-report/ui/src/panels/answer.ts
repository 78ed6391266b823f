// SPDX-License-Identifier: MIT OR Apache-2.0
// The answer, first on the page: the cause, the figures that decide, and what helps, ready to be copied. Its sentences
// are those of `tonnage explain`.

import type { Answer, Fact, Proposal, Story, Timeline } from "../data";
import { el, prose } from "../dom";
import { bytes, exact } from "../format";
import { copyButton, folded } from "../parts";
import { momentBar } from "../stack";

/** Lines that stand on the card; the others are folded. */
const FIRST = ["needs", "headroom", "overhead", "when"];

/** The card; `timeline` is that of the process it is about, if the page has it. */
export function answerCard(story: Story, timeline: Timeline | null): HTMLElement {
  const { answer } = story;
  const card = el("section", { id: "answer", class: `answer ${story.tone}`, "aria-labelledby": "answer-title" });
  const mark = story.tone === "good" ? "✓ " : story.tone === "bad" ? "✗ " : "";
  const { title, code, detail } = heading(story);
  card.append(el("h2", { id: "answer-title" }, el("span", { "aria-hidden": "true" }, mark), ...prose(title), code ? el("span", { class: "tag" }, code) : null));
  if (!answer) return card;
  if (answer.figures.length > 0) card.append(figures(answer));
  if (detail) card.append(el("p", { class: "detail" }, ...prose(detail)));
  if (story.verdict && story.tone === "plain") card.append(el("p", { class: "verdict" }, ...prose(story.verdict)));
  if (answer.fixes.length > 0) card.append(fixes(answer.fixes));
  const moment = timeline?.firstMoment();
  if (timeline && moment) card.append(momentBar(timeline, moment));
  const lines = joined(answer.lines);
  const first = lines.filter((line) => FIRST.includes(line.name));
  const others = lines.filter((line) => !FIRST.includes(line.name));
  if (story.verdict && story.tone !== "plain") others.unshift({ name: "verdict", texts: [story.verdict] });
  if (first.length > 0) card.append(list(first));
  if (others.length > 0) card.append(folded("More of what tonnage explain reports", list(others)));
  return card;
}

/** The outcome and its cause in a few words; the sizes of the cause follow as a sentence. */
function heading({ verdict, answer, findings }: Story): { title: string; code: string; detail: string } {
  const headline = answer?.headline ?? "";
  const outcome = /^([A-Z].*?)(?:[:;] |\.?$)/.exec(verdict)?.[1] ?? "";
  const cause = findings[0];
  const at = cause ? headline.indexOf(`(${cause.code})`) : -1;
  if (at >= 0) {
    const title = outcome ? `${outcome}: ${cause.title}` : capitalised(cause.title);
    return { title, code: cause.code, detail: capitalised(headline.slice(at + cause.code.length + 2).replace(/^: /, "")) };
  }
  // The peak is among the figures already.
  const title = headline.startsWith("peak ") && outcome ? outcome : capitalised(headline || verdict);
  return { title, code: "", detail: "" };
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
  return el("dl", { class: "lines" }, ...lines.flatMap(({ name, texts }) => [el("dt", {}, name), ...texts.map((text) => el("dd", {}, ...prose(text)))]));
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
    el("h3", {}, "Fixes"),
    el(
      "ol",
      {},
      ...all.map((fix) =>
        el(
          "li",
          {},
          el("span", { class: "advice" }, ...prose(fix.advice)),
          fix.paste ? el("div", { class: "paste" }, el("code", {}, fix.paste), copyButton(fix.paste)) : null,
          el("span", { class: "proof" }, ...prose(fix.proof)),
        ),
      ),
    ),
  );
}
