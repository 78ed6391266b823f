// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads the page's own data and puts up what it holds: one recording, or two that are compared.

import { ComparisonPage } from "./comparison";
import { Blocks, Part, Timeline, type PageFacts } from "./data";
import { el } from "./dom";
import { Report } from "./report";
import { frames } from "./view";

const VERSION = 2;

/** The data behind this program in the file may still be on its way. */
async function whole(): Promise<void> {
  if (document.readyState === "loading") await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
}

const timelineOf = async (pane: number) => new Timeline(await Part.unpack(`data-timeline-${pane}`));
const blocksOf = async (pane: number, timeline: Timeline) => new Blocks(await Part.unpack(`data-blocks-${pane}`), timeline.rows);

async function start(): Promise<void> {
  const app = document.getElementById("app");
  if (!app) return;
  const { facts } = await Part.unpack<PageFacts>("data-story");
  if (facts.version !== VERSION) throw new Error("this page and its data are of different versions");
  const tests: Record<string, unknown> = { frames };
  if (facts.story.comparison) {
    await whole();
    const timelines = await Promise.all(facts.panes.map((_, pane) => timelineOf(pane)));
    const page = new ComparisonPage(facts, app, timelines);
    performance.mark("first-picture");
    for (const [pane, timeline] of timelines.entries()) page.setBlocks(pane, await blocksOf(pane, timeline));
    tests["panes"] = () => page.panes;
  } else {
    const asked = Number(new URLSearchParams(location.hash.slice(1)).get("pane") ?? 0);
    const pane = Number.isInteger(asked) && asked > 0 && asked < facts.panes.length ? asked : 0;
    if (pane > 0) await whole();
    const timeline = await timelineOf(pane);
    const page = new Report(facts, app, timeline, pane);
    performance.mark("first-picture");
    await whole();
    page.setBlocks(await blocksOf(pane, timeline));
    tests["panes"] = () => [page.shown];
  }
  performance.mark("all-pictures");
  (window as unknown as { tonnage: unknown }).tonnage = tests;
}

start().catch((error: unknown) => {
  const reason = error instanceof Error ? error.message : String(error);
  document.getElementById("app")?.append(el("p", { role: "alert", class: "verdict bad" }, `The pictures cannot be drawn: ${reason}`));
  throw error;
});
