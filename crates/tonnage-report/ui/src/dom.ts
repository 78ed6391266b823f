// SPDX-License-Identifier: MIT OR Apache-2.0
// Elements from data. Texts are set as text, never as HTML: names in a recording may be anything.

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false));
  return element;
}

/** A canvas that follows the size of its box; `draw` is called with its size in CSS pixels. */
export class Surface {
  readonly canvas: HTMLCanvasElement;
  readonly context: CanvasRenderingContext2D;
  width = 0;
  height = 0;
  scale = 1;

  constructor(label: string, height: number, changed: () => void) {
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d", { alpha: false });
    if (!context) throw new Error("this browser draws no canvas");
    this.context = context;
    new ResizeObserver(() => {
      if (this.fit()) changed();
    }).observe(this.canvas);
  }

  /** Takes the size of the box; says whether it changed. */
  fit(): boolean {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    if (width === this.width && height === this.height && scale === this.scale) return false;
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.canvas.width = Math.max(1, Math.round(width * scale));
    this.canvas.height = Math.max(1, Math.round(height * scale));
    return true;
  }

  /** Ready to draw in CSS pixels. */
  begin(): CanvasRenderingContext2D {
    this.context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    return this.context;
  }
}

/** A colour as red, green and blue. */
export type Rgb = [number, number, number];

export interface Palette {
  background: string;
  panel: Rgb;
  text: string;
  muted: string;
  grid: string;
  line: string;
  accent: string;
  warn: string;
  hole: Rgb;
  holeLine: Rgb;
  rest: Rgb;
  context: string;
  categories: string[];
  categoryRgb: Rgb[];
  phases: string[];
}

function rgb(color: string): Rgb {
  const value = parseInt(color.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** The colours of the theme in force, from the style sheet. */
export function palette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const categories = Array.from({ length: 9 }, (_, index) => of(`c${index}`));
  return {
    background: of("panel"),
    panel: rgb(of("panel")),
    text: of("text"),
    muted: of("muted"),
    grid: of("grid"),
    line: of("line"),
    accent: of("accent"),
    warn: of("warn"),
    hole: rgb(of("hole")),
    holeLine: rgb(of("hole-line")),
    rest: rgb(of("rest")),
    context: of("context"),
    categories,
    categoryRgb: categories.map(rgb),
    phases: Array.from({ length: 6 }, (_, index) => of(`p${index}`)),
  };
}

/** Diagonal lines on a ground, to fill areas that are told apart without colour. */
export function hatch(context: CanvasRenderingContext2D, ground: string, line: string, scale: number): CanvasPattern | string {
  const tile = document.createElement("canvas");
  const size = Math.round(6 * scale);
  tile.width = size;
  tile.height = size;
  const inner = tile.getContext("2d");
  if (!inner) return ground;
  inner.fillStyle = ground;
  inner.fillRect(0, 0, size, size);
  inner.strokeStyle = line;
  inner.lineWidth = scale;
  inner.beginPath();
  for (const shift of [-size, 0, size]) {
    inner.moveTo(shift, size);
    inner.lineTo(shift + size, 0);
  }
  inner.stroke();
  const pattern = context.createPattern(tile, "repeat");
  // The context draws in CSS pixels; the tile is in pixels of the device.
  pattern?.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern ?? ground;
}
