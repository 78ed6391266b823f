// SPDX-License-Identifier: MIT OR Apache-2.0
// The page of one recording: the answer, what was found, and one pane at a time of its processes and devices.

import { Blocks, Part, Timeline, type PageFacts, type Story } from "./data";
import { el } from "./dom";
import { count } from "./format";
import { alive, group } from "./groups";
import { helpDialog } from "./help";
import { paneKey } from "./keys";
import { Pane } from "./pane";
import { answerCard } from "./panels/answer";
import { FindingsPanel } from "./panels/findings";
import { ranksPanel } from "./panels/ranks";
import { SelectionPanel } from "./panels/selection";
import { button } from "./parts";
import { ThemeSwitch } from "./theme";
import { Toolbar } from "./toolbar";

/** The head of any page: its title, its buttons and what it is about. */
export function pageHead(story: Story, theme: ThemeSwitch, help: HTMLDialogElement): HTMLElement {
  document.title = `${story.title} – GPU memory`;
  return el(
    "header",
    { class: "top" },
    el("div", { class: "title" }, el("h1", {}, story.title), el("div", { class: "tools" }, theme.button, button("keys and help", "Keys and help (?)", () => help.showModal()))),
    el("dl", { class: "facts" }, ...story.facts.map((fact) => el("div", {}, el("dt", {}, fact.name), el("dd", {}, fact.text)))),
  );
}

export class Report {
  private readonly story: Story;
  private readonly theme: ThemeSwitch;
  private readonly help = helpDialog();
  private readonly toolbar: Toolbar;
  private readonly findings: FindingsPanel;
  private readonly selection: SelectionPanel;
  private readonly body = el("div", { class: "panels" });
  private readonly foot = el("footer", {});
  private pane!: Pane;
  private number = 0;
  private finding: number | null = null;

  constructor(
    facts: PageFacts,
    app: HTMLElement,
    first: Timeline,
    number: number,
  ) {
    const { story } = facts;
    this.story = story;
    this.theme = new ThemeSwitch(() => {
      this.pane?.redraw();
      this.pane?.view.keep();
    });
    this.selection = new SelectionPanel("selection", () => this.clear());
    this.findings = new FindingsPanel(story.findings, (finding) => void this.showFinding(finding));
    this.toolbar = new Toolbar(
      () => this.pane,
      facts.panes,
      (pane) => void this.choose(pane),
      () => this.chooseFinding(null),
    );
    app.replaceChildren(
      pageHead(story, this.theme, this.help),
      el(
        "main",
        {},
        answerCard(story, number === 0 ? first : null),
        ranksPanel(story.ranks, (pane) => void this.choose(pane)),
        this.toolbar.element,
        this.toolbar.found,
        el("div", { class: `beside${this.findings.element ? " found" : ""}` }, this.findings.element, this.body, this.selection.element),
      ),
      this.foot,
      this.help,
    );
    this.show(first, number);
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => this.pane.holders.icicle.refresh());
    window.addEventListener("scroll", () => this.pane.tip.leave(), { passive: true });
    window.addEventListener("hashchange", () => {
      this.pane.view.read();
      this.toolbar.search.value = this.pane.view.query;
      this.toolbar.find();
      this.pane.redraw();
    });
  }

  /** The pane that is shown, for tests. */
  get shown(): Pane {
    return this.pane;
  }

  private show(timeline: Timeline, number: number): void {
    this.pane?.close();
    this.number = number;
    this.selection.clear();
    this.pane = new Pane(timeline, {
      number,
      prefix: "",
      least: 0,
      kept: true,
      selection: this.selection,
      picked: () => this.chooseFinding(null),
      pinning: (finding) => this.story.findings[finding]?.pins ?? false,
      cause: this.story.findings.length > 0 ? { finding: 0, label: `${this.story.findings[0].code} ${this.story.findings[0].title}` } : null,
      changed: (what) => {
        if (what === "range" || what === "moment" || what === "theme") this.toolbar.update();
        if (what === "moment") this.toolbar.summarise();
      },
    });
    this.pane.view.theme = () => this.theme.kept;
    this.body.replaceChildren(...this.pane.elements);
    this.toolbar.attach(number);
    this.pane.firstPicture();
    const { facts } = timeline;
    this.foot.textContent = `${this.story.producer} · ${count(facts.rows)} events, ${count(facts.blocks)} blocks, ${count(facts.drawn)} of them drawn one by one · sizes are binary: 1 GiB is 1,073,741,824 bytes · this file needs no network and sends nothing`;
  }

  /** Takes in the second part of the data of the pane that is shown. */
  setBlocks(blocks: Blocks): void {
    this.pane.setBlocks(blocks);
    this.introduce(blocks);
    this.selection.unasked = true;
    if (this.pane.view.query) this.toolbar.find();
  }

  /** The moments worth looking at first, beside the pictures and without marking it in them. */
  private introduce(blocks: Blocks): void {
    const { story, pane } = this;
    if (pane.pickFailure()) return;
    const first = story.findings.findIndex((_, index) => (blocks.marked.get(index)?.length ?? 0) > 0);
    if (first >= 0) {
      const { code, title, text } = story.findings[first];
      this.selection.members(`${code} ${title}`, text, blocks, blocks.marked.get(first) ?? []);
      return;
    }
    const largest = group(blocks, alive(blocks, pane.view.moment))[0];
    if (largest) this.selection.group(pane.timeline, blocks, largest);
  }

  /** Shows another process, device or part of the recording. */
  private async choose(number: number): Promise<void> {
    if (number === this.number) return;
    this.chooseFinding(null);
    const timeline = new Timeline(await Part.unpack(`data-timeline-${number}`));
    history.replaceState(null, "", location.pathname + location.search);
    this.show(timeline, number);
    this.setBlocks(new Blocks(await Part.unpack(`data-blocks-${number}`), timeline.rows));
    this.pane.view.changed("range");
  }

  private chooseFinding(number: number | null): void {
    this.finding = number;
    this.findings.choose(number);
  }

  private async showFinding(number: number): Promise<void> {
    const finding = this.story.findings[number];
    if (!finding) return;
    if (this.finding === number) {
      this.clear();
      return;
    }
    await this.choose(finding.pane);
    this.toolbar.endSearch();
    this.chooseFinding(number);
    this.pane.pickFinding(number, `${finding.code} ${finding.title}`, finding.text);
  }

  /** Nothing is selected any more. */
  private clear(): void {
    this.chooseFinding(null);
    this.toolbar.endSearch();
    this.pane.clear();
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    const typing = target.matches("input, select, textarea");
    if (event.key === "Escape") {
      this.pane.tip.leave();
      if (this.help.open) return;
      if (target === this.toolbar.search || this.pane.view.found) {
        this.clear();
        this.toolbar.search.blur();
      } else if (!this.pane.holders.icicle.up()) {
        this.clear();
      }
      return;
    }
    // A table that is wider than the screen, and a long stack, scroll by the arrows.
    if (event.key.startsWith("Arrow") && target.closest(".table, .selection")) return;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (!paneKey(this.pane, event) && !this.ownKey(event.key)) return;
    event.preventDefault();
  }

  private ownKey(key: string): boolean {
    switch (key) {
      case ",":
        this.toolbar.stepMoment(-1);
        return true;
      case ".":
        this.toolbar.stepMoment(1);
        return true;
      case "f": {
        const numbers = this.story.findings.flatMap((finding, number) => (finding.blocks > 0 ? [number] : []));
        const next = numbers.find((number) => number > (this.finding ?? -1)) ?? numbers[0];
        if (next !== undefined && next !== this.finding) void this.showFinding(next);
        return true;
      }
      case "/":
        this.toolbar.search.focus();
        this.toolbar.search.select();
        return true;
      case "t":
        this.theme.toggle();
        return true;
      case "?":
        this.help.showModal();
        return true;
      default:
        return false;
    }
  }
}
