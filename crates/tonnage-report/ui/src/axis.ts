// SPDX-License-Identifier: MIT OR Apache-2.0
// The horizontal axis: steps and what the program did in them. Without steps, the events of the recording.

import { upperBound, type Timeline } from "./data";
import type { Palette } from "./dom";
import { count, duration, niceStep } from "./format";

/** Room around the plot: left and right as in every picture over time, and below it. */
export const LEFT = 64;
export const RIGHT = 12;
export const AXIS = 40;
const STRIP = 14;

export interface Span {
  from: number;
  to: number;
  left: number;
  width: number;
}

/** Draws the axis below `floor`. */
export function drawAxis(context: CanvasRenderingContext2D, timeline: Timeline, colors: Palette, floor: number, span: Span): void {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  if (timeline.hasPhases) {
    phases(context, timeline, colors, floor + 3, span);
    steps(context, timeline, colors, floor + 3 + STRIP, span);
  } else {
    events(context, timeline, colors, floor, span);
  }
}

function position(span: Span, row: number): number {
  return span.left + ((row - span.from) / (span.to - span.from)) * span.width;
}

function phases(context: CanvasRenderingContext2D, timeline: Timeline, colors: Palette, top: number, span: Span): void {
  const first = Math.max(0, timeline.phaseAt(Math.floor(span.from)));
  const last = upperBound(timeline.phaseFrom, span.to) - 1;
  const right = span.left + span.width;
  context.textAlign = "left";
  if (span.width / Math.max(1, last - first + 1) < 3) {
    context.fillStyle = colors.phases[6];
    context.fillRect(span.left, top, span.width, STRIP);
    context.fillStyle = colors.muted;
    const text = "zoom in to see forward and backward passes";
    if (context.measureText(text).width < span.width - 8) context.fillText(text, span.left + 4, top + STRIP / 2 + 0.5);
    return;
  }
  for (let phase = first; phase <= last; phase++) {
    const from = Math.max(span.left, position(span, timeline.phaseFrom[phase]));
    const to = Math.min(right, position(span, timeline.phaseTo[phase]));
    if (to <= from) continue;
    const kind = timeline.phase[phase];
    context.fillStyle = colors.phases[kind];
    context.fillRect(from, top, to - from, STRIP);
    context.fillStyle = colors.background;
    context.fillRect(from, top, 1, STRIP);
    const name = timeline.facts.phases[kind];
    if (name === "other") continue;
    const text = [name, name.slice(0, 3)].find((one) => context.measureText(one).width + 7 < to - from);
    if (text) {
      context.fillStyle = colors.text;
      context.fillText(text, from + 4, top + STRIP / 2 + 0.5);
    }
  }
}

/** Numbers of steps where they begin: every one, or every so many. */
function steps(context: CanvasRenderingContext2D, timeline: Timeline, colors: Palette, top: number, span: Span): void {
  const first = Math.max(0, timeline.phaseAt(Math.floor(span.from)));
  const last = upperBound(timeline.phaseFrom, span.to) - 1;
  const begins: { step: number; at: number }[] = [];
  for (let phase = first; phase <= last; phase++) {
    const step = timeline.phaseStep[phase];
    if (timeline.phase[phase] === 0 || begins.at(-1)?.step === step) continue;
    begins.push({ step, at: Math.max(span.left, position(span, timeline.phaseFrom[phase])) });
  }
  const widest = context.measureText(`step ${count(begins.at(-1)?.step ?? 0)}`).width + 14;
  const every = begins.length > 1 ? Math.max(1, niceStep((widest / span.width) * (begins[begins.length - 1].step - begins[0].step + 1), false)) : 1;
  context.textAlign = "left";
  let free = span.left - 1;
  for (const [index, { step, at }] of begins.entries()) {
    if (step % every !== 0 || at < free) continue;
    const text = `step ${count(step)}`;
    const room = context.measureText(text).width;
    // A step that began before the picture is mostly hidden: the next one has the better right to the place.
    const next = begins[index + 1];
    if (index === 0 && next && next.step % every === 0 && next.at < at + room + 12) continue;
    if (at + room > span.left + span.width) break;
    context.fillStyle = colors.line;
    context.fillRect(Math.round(at), top, 1, 10);
    context.fillStyle = colors.muted;
    context.fillText(text, at + 4, top + 11);
    free = at + room + 12;
  }
}

function events(context: CanvasRenderingContext2D, timeline: Timeline, colors: Palette, floor: number, span: Span): void {
  const every = Math.max(1, niceStep((span.to - span.from) / Math.max(2, span.width / 130), false));
  const timed = timeline.timeAt(0) !== null;
  context.textAlign = "center";
  for (let row = Math.ceil(span.from / every) * every; row <= span.to; row += every) {
    const at = position(span, row);
    if (at < span.left - 1 || at > span.left + span.width + 1) continue;
    context.fillStyle = colors.line;
    context.fillRect(Math.round(at), floor, 1, 5);
    context.fillStyle = colors.muted;
    const time = timed ? timeline.timeAt(row) : null;
    for (const [text, line] of [[row === 0 ? "0 events" : count(row), 13], [time === null ? "" : duration(time), 26]] as [string, number][]) {
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(span.left + span.width - half, Math.max(span.left + half, at)), floor + line);
    }
  }
}
