// SPDX-License-Identifier: MIT OR Apache-2.0
// The memory of other allocators for the same requests, folded away until the reader opens it.

import type { PaneContext } from "../context";
import { plural } from "../format";
import { folded, foldedSection, how } from "../parts";
import { allocatorBars, AllocatorLines, allocatorTable } from "../allocators";
import type { Change } from "../view";

export class AllocatorsPanel {
  readonly element: HTMLElement | null = null;
  private readonly lines: AllocatorLines | null = null;

  constructor(pane: PaneContext) {
    const { allocators } = pane.timeline.facts.words;
    if (allocators.length === 0) return;
    if (allocators.some((run) => run.series.length > 1)) this.lines = new AllocatorLines(allocators, pane.view, pane.colors);
    this.element = foldedSection(
      pane.id("allocators"),
      "Allocators compared",
      `what ${plural(allocators.length, "allocator and setting")} would have reserved`.replace("allocator and settings", "allocators and settings"),
      () => {
        this.lines?.surface.fit();
        this.lines?.draw();
      },
      allocatorBars(allocators, pane.timeline),
      this.lines?.surface.element ?? null,
      how(
        "The requests and frees of the recording, served by other allocators and settings. The full bar is the most each obtained from the driver; the solid part was handed out at that moment, the hatched part was not. The dashed red line is the capacity of the GPU; the grey start of a bar is the context.",
        "PyTorch's allocator is replayed exactly, event for event; the others are approximations and say so.",
      ),
      folded("Table: allocators", allocatorTable(allocators).element),
    );
  }

  update(what: Change): void {
    if (what === "range" || what === "theme") this.lines?.draw();
  }
}

