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

/** A sentence in which a part between two backticks is code. Each part is a text node, so a hostile name stays text. */
export function prose(text: string): (HTMLElement | string)[] {
  const parts = text.split("`");
  const nodes = parts.map((part, index) => {
    if (index % 2 === 0) return part;
    // A backtick without a second one, or with nothing between them, stays a character.
    if (index === parts.length - 1) return "`" + part;
    return part ? el("code", { class: "span" }, part) : "``";
  });
  return nodes.filter((node) => node !== "");
}

/** A canvas that follows the size of its box, with another above it for what moves with the pointer. */
export class Surface {
  /**
   * While the page is printed nothing is fitted: what is drawn is scaled, because no frame would draw it again. The
   * canvas above is left out, because on paper what is cleared in it is white; its lines go into the one below.
   */
  static printing = false;
  readonly element: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  private readonly above: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly aboveContext: CanvasRenderingContext2D;
  width = 0;
  height = 0;
  scale = 1;

  constructor(label: string, height: number, changed: () => void) {
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
    this.above = el("canvas", { class: "above", "aria-hidden": "true" });
    this.element = el("div", { class: "surface" }, this.canvas, this.above);
    this.element.style.height = `${height}px`;
    const context = this.canvas.getContext("2d", { alpha: false });
    const above = this.above.getContext("2d");
    if (!context || !above) throw new Error("this browser draws no canvas");
    this.context = context;
    this.aboveContext = above;
    new ResizeObserver(() => {
      if (this.fit()) changed();
    }).observe(this.element);
  }

  /** Takes the size of the box; returns whether it changed. */
  fit(): boolean {
    if (Surface.printing) return false;
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    if (width === this.width && height === this.height && scale === this.scale) return false;
    this.width = width;
    this.height = height;
    this.scale = scale;
    for (const canvas of [this.canvas, this.above]) {
      canvas.width = Math.max(1, Math.round(width * scale));
      canvas.height = Math.max(1, Math.round(height * scale));
    }
    return true;
  }

  /** Ready to draw in CSS pixels. */
  begin(): CanvasRenderingContext2D {
    this.context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    return this.context;
  }

  /** Ready to draw what moves with the pointer, on nothing. */
  beginAbove(): CanvasRenderingContext2D {
    if (Surface.printing) return this.begin();
    this.aboveContext.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    this.aboveContext.clearRect(0, 0, this.width, this.height);
    return this.aboveContext;
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
    phases: Array.from({ length: 7 }, (_, index) => of(`p${index}`)),
  };
}

/** Diagonal lines on a ground, to fill areas that are distinguished without colour; made once for each theme. */
const patterns = new Map<string, CanvasPattern | string>();

export function hatch(context: CanvasRenderingContext2D, ground: string, line: string, scale: number, wide = false): CanvasPattern | string {
  const key = `${ground} ${line} ${scale} ${wide}`;
  let pattern = patterns.get(key);
  if (!pattern) {
    pattern = makeHatch(context, ground, line, scale, wide);
    patterns.set(key, pattern);
  }
  return pattern;
}

function makeHatch(context: CanvasRenderingContext2D, ground: string, line: string, scale: number, wide: boolean): CanvasPattern | string {
  const tile = document.createElement("canvas");
  const size = Math.round(6 * scale);
  tile.width = size;
  tile.height = size;
  const inner = tile.getContext("2d");
  if (!inner) return ground;
  inner.fillStyle = ground;
  inner.fillRect(0, 0, size, size);
  inner.strokeStyle = line;
  inner.lineWidth = (wide ? 2 : 1) * scale;
  inner.beginPath();
  for (const shift of [-size, 0, size]) {
    // Wide lines fall, so that they differ from narrow ones beside them.
    inner.moveTo(shift, wide ? 0 : size);
    inner.lineTo(shift + size, wide ? size : 0);
  }
  inner.stroke();
  const pattern = context.createPattern(tile, "repeat");
  // The context draws in CSS pixels; the tile is in pixels of the device.
  pattern?.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern ?? ground;
}
