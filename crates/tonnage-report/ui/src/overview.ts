// SPDX-License-Identifier: MIT OR Apache-2.0
// The whole recording as a strip, with a frame around the part that is shown.

import { pixelColumns } from "./columns";
import type { Timeline } from "./data";
import { Surface, type Palette } from "./dom";
import { drag } from "./pointer";
import { LEFT, RIGHT } from "./axis";
import type { View } from "./view";

export class Overview {
  readonly surface: Surface;
  private image: HTMLCanvasElement | null = null;

  constructor(
    private readonly timeline: Timeline,
    private readonly view: View,
    private readonly colors: () => Palette,
    wheel: (event: WheelEvent) => void,
  ) {
    this.surface = new Surface("Overview of the whole recording. Drag to choose the part shown below.", 46, () => this.redraw());
    this.watch();
    this.surface.canvas.addEventListener("wheel", wheel, { passive: false });
  }

  redraw(): void {
    this.image = null;
    this.draw();
  }

  draw(): void {
    const { surface, timeline, view } = this;
    const { width, height } = surface;
    if (width <= LEFT + RIGHT) return;
    const colors = this.colors();
    const context = surface.begin();
    const plot = Math.floor(width - LEFT - RIGHT);
    this.image ??= this.strip(plot, height, colors);
    context.fillStyle = colors.background;
    context.fillRect(0, 0, width, height);
    if (this.image) context.drawImage(this.image, LEFT, 0);
    const x = (row: number) => LEFT + (row / timeline.rows) * plot;
    const [from, to] = [x(view.from), Math.max(x(view.to), x(view.from) + 2)];
    context.fillStyle = colors.background;
    context.globalAlpha = 0.72;
    context.fillRect(LEFT, 0, from - LEFT, height);
    context.fillRect(to, 0, LEFT + plot - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.5, 0.75, to - from - 1, height - 1.5);
    context.fillStyle = colors.text;
    for (const at of [from, to]) context.fillRect(at - 2, height / 2 - 9, 4, 18);
    context.fillRect(Math.round(x(view.moment)), 0, 1, height);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colors.muted;
    context.fillText("all of it", LEFT - 6, height / 2);
  }

  private strip(plot: number, height: number, colors: Palette): HTMLCanvasElement | null {
    const { timeline } = this;
    const image = document.createElement("canvas");
    image.width = plot;
    image.height = height;
    const context = image.getContext("2d", { alpha: false });
    if (!context) return null;
    context.fillStyle = colors.background;
    context.fillRect(0, 0, plot, height);
    const columns = pixelColumns(timeline, 0, timeline.rows, plot);
    const scale = (height - 2) / Math.max(1, timeline.mostUsed * 1.02);
    for (let column = 0; column < plot; column++) {
      let at = height - timeline.facts.context * scale;
      context.fillStyle = colors.context;
      context.fillRect(column, at, 1, height - at);
      const stretch = columns.high[column];
      for (const category of timeline.present) {
        const part = timeline.high[category][stretch] * scale;
        context.fillStyle = colors.categories[category];
        context.fillRect(column, at - part, 1, part);
        at -= part;
      }
    }
    return image;
  }

  private watch(): void {
    const { view, timeline, surface } = this;
    const width = () => surface.width - LEFT - RIGHT;
    const rowOf = (x: number) => ((x - LEFT) / width()) * timeline.rows;
    const px = (row: number) => LEFT + (row / timeline.rows) * width();
    drag(surface.canvas, {
      start: (x) => {
        const [from, to] = [view.from, view.to];
        const whole = from === 0 && to === timeline.rows;
        const grip = Math.abs(x - px(from)) < 7 ? "from" : Math.abs(x - px(to)) < 7 ? "to" : "";
        const inside = !whole && x > px(from) && x < px(to);
        return {
          move: (now) => {
            if (grip === "from") view.show(Math.min(rowOf(now), to - 8), to);
            else if (grip === "to") view.show(from, Math.max(rowOf(now), from + 8));
            else if (inside) view.show(from + rowOf(now) - rowOf(x), to + rowOf(now) - rowOf(x));
            else view.show(Math.min(rowOf(x), rowOf(now)), Math.max(rowOf(x), rowOf(now)));
          },
          end: (_x, _y, moved) => {
            if (!moved) view.show(rowOf(x) - (to - from) / 2, rowOf(x) + (to - from) / 2);
          },
        };
      },
    });
  }
}
