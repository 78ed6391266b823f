// SPDX-License-Identifier: MIT OR Apache-2.0
// All ranks of a job beside each other: what each took of its GPU, and equal ones in one line. Ranks that were not run
// keep their place.

import type { Rank, Ranks } from "../data";
import { el } from "../dom";
import { bytes, plural } from "../format";
import { how, section } from "../parts";

/** Bars that fit beside each other; of a larger job only those ranks are drawn that were run. */
const MOST = 1024;

export function ranksPanel(ranks: Ranks | null, choose: (pane: number) => void): HTMLElement | null {
  if (!ranks) return null;
  const { run, world_size: size } = ranks;
  const most = Math.max(1, ...run.map((rank) => rank.used));
  const byRank = new Map(run.map((rank) => [rank.rank, rank]));
  const numbers = size <= MOST ? Array.from({ length: size }, (_, number) => number) : run.map((rank) => rank.rank);
  const bars = numbers.map((number) => bar(number, byRank.get(number), most, choose));
  const absent = size - run.length;
  const sum = `${plural(run.length, "rank")} of ${size}${absent > 0 ? " run" : ""}`;
  const element = section("ranks", "Ranks", el("span", { class: "sum" }, absent > 0 ? sum : plural(run.length, "rank")));
  element.append(
    el("div", { class: "ranks", role: "group", "aria-label": "Memory of each rank" }, ...bars),
    el("dl", { class: "lines" }, ...ranks.lines.flatMap(({ name, text }) => [el("dt", {}, name), el("dd", {}, text)])),
    how(
      "A bar for each rank, in order, all on the scale of the fullest. Its height is the most that was in use on its GPU. The solid part was in blocks of PyTorch at most, the hatched part is the rest: cache, context, memory outside PyTorch. A click shows the rank below.",
      ...(absent > 0 ? [`${plural(absent, "rank")} were not run: they are taken to be like those that were, and have no bar.`] : []),
    ),
  );
  return element;
}

function bar(number: number, rank: Rank | undefined, most: number, choose: (pane: number) => void): HTMLElement {
  if (!rank) return el("span", { class: "rank absent", title: `rank ${number}: not run` });
  const part = (value: number) => `${(100 * value) / most}%`;
  const fill = (name: string, value: number) => {
    const one = el("span", { class: name });
    one.style.height = part(value);
    return one;
  };
  const said = `rank ${number}: ${bytes(rank.used)} used at most, ${bytes(rank.allocated)} allocated${rank.capacity === null ? "" : ` of ${bytes(rank.capacity)}`}`;
  const fills = [fill("rest", Math.max(0, rank.used - rank.allocated)), fill("allocated", Math.min(rank.allocated, rank.used))];
  const { pane } = rank;
  if (pane === null) return el("span", { class: "rank", title: said }, ...fills);
  return el("button", { type: "button", class: "rank", title: said, "aria-label": said, click: () => choose(pane) }, ...fills);
}
