// SPDX-License-Identifier: MIT OR Apache-2.0
// The contract of panels and the pane that holds them; in a separate file, so that panels do not import the pane.

import type { Moment, Timeline } from "./data";
import type { Palette } from "./dom";
import type { Group } from "./groups";
import type { Tip } from "./tip";
import type { View } from "./view";

/** The view of a panel on its pane. */
export interface PaneContext {
  readonly timeline: Timeline;
  readonly view: View;
  readonly tip: Tip;
  readonly colors: () => Palette;
  /** Moments, those of note before those of steps. */
  readonly moments: Moment[];
  /** A unique id for an element of this pane. */
  id(name: string): string;
  pickBlock(block: number, row: number): void;
  pickPlanned(block: number, row: number): void;
  pickGroup(group: Group): void;
  /** Shows the blocks that stay unused at the chosen moment. */
  pickUnused(): void;
  pickMembers(title: string, text: string, members: number[]): void;
}
