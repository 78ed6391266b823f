// SPDX-License-Identifier: MIT OR Apache-2.0
// Facts that the recording does not contain, and the omissions of the page.

import type { PaneContext } from "../context";
import { el, prose } from "../dom";
import { plural } from "../format";
import { section } from "../parts";

export function unknownPanel(pane: PaneContext): HTMLElement | null {
  const { facts } = pane.timeline;
  const lines = [...facts.words.unknown];
  if (facts.phases_left_out > 0) lines.push(`${plural(facts.phases_left_out, "short phase")} that are not drawn`);
  if (facts.steps_left_out > 0) lines.push(`the peaks of ${plural(facts.steps_left_out, "step")} with lower ones are not in the list of moments`);
  if (facts.reserved_at_least) lines.push("what the allocator held before the recording began; reserved is at least what was handed out");
  if (lines.length === 0) return null;
  const part = section(pane.id("unknown"), "What this does not show", null);
  part.append(el("ul", { class: "unknown" }, ...lines.map((line) => el("li", {}, ...prose(line)))));
  return part;
}
