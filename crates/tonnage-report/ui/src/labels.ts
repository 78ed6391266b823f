// SPDX-License-Identifier: MIT OR Apache-2.0
// Words on a picture that never lie over each other: each takes the first of its places that is free, or is left out.

const HEIGHT = 13;

export interface Box {
  text: string;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export class Labels {
  readonly placed: Box[] = [];

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly around: string,
    private readonly limits: { left: number; right: number; top: number; bottom: number },
  ) {}

  /** Puts a text at the first free place: left edge and middle of each. */
  put(text: string, color: string, places: [number, number][], font = "11px system-ui, sans-serif"): boolean {
    const { context, limits } = this;
    context.font = font;
    const width = context.measureText(text).width;
    for (const [x, y] of places) {
      const box = { text, left: x - 3, right: x + width + 3, top: y - HEIGHT / 2, bottom: y + HEIGHT / 2 };
      if (box.left < limits.left - 3 || box.right > limits.right + 3 || box.top < limits.top - 1 || box.bottom > limits.bottom + 1) continue;
      if (this.placed.some((other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom)) continue;
      this.placed.push(box);
      context.textAlign = "left";
      context.textBaseline = "middle";
      // A separate ground, so that lines of the picture do not run through the words.
      context.globalAlpha = 0.8;
      context.fillStyle = this.around;
      context.fillRect(box.left, box.top, box.right - box.left, HEIGHT);
      context.globalAlpha = 1;
      context.fillStyle = color;
      context.fillText(text, x, y);
      return true;
    }
    return false;
  }

  width(text: string, font = "11px system-ui, sans-serif"): number {
    this.context.font = font;
    return this.context.measureText(text).width;
  }
}
