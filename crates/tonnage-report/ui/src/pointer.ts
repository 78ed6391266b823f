// SPDX-License-Identifier: MIT OR Apache-2.0
// Dragging, pinching and hovering, for mouse and touch alike.

interface Dragging {
  move(x: number, y: number): void;
  end(x: number, y: number, moved: boolean): void;
}

interface Handlers {
  start(x: number, y: number, event: PointerEvent): Dragging;
  pinch?(factor: number, x: number): void;
  hover?(x: number, y: number, event: PointerEvent): void;
  leave?(): void;
}

/** The thing under the pointer; the tooltip implements it. */
export interface Hover {
  row: number | null;
  timeline(stretch: number, low: number, x: number, y: number, inside: number): void;
  leave(): void;
}

export function drag(element: HTMLElement, handlers: Handlers): void {
  const fingers = new Map<number, number>();
  let dragging: Dragging | null = null;
  let from: [number, number] = [0, 0];
  let moved = false;
  const place = (event: PointerEvent): [number, number] => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    fingers.set(event.pointerId, x);
    if (fingers.size > 1) {
      dragging = null;
      return;
    }
    element.setPointerCapture(event.pointerId);
    from = [x, y];
    moved = false;
    dragging = handlers.start(x, y, event);
  });
  element.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (fingers.size > 1 && fingers.has(event.pointerId)) {
      const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const before = Math.abs((fingers.get(event.pointerId) ?? x) - others[0]);
      const now = Math.abs(x - others[0]);
      fingers.set(event.pointerId, x);
      if (before > 4 && now > 4) handlers.pinch?.(before / now, (x + others[0]) / 2);
      return;
    }
    if (dragging && fingers.has(event.pointerId)) {
      moved ||= Math.abs(x - from[0]) + Math.abs(y - from[1]) > 4;
      if (moved) dragging.move(x, y);
      return;
    }
    if (event.pointerType !== "touch") handlers.hover?.(x, y, event);
  });
  const finish = (event: PointerEvent): void => {
    fingers.delete(event.pointerId);
    if (!dragging) return;
    const [x, y] = place(event);
    dragging.end(x, y, moved || event.type === "pointercancel");
    dragging = null;
    if (!moved && event.pointerType === "touch") handlers.hover?.(x, y, event);
  };
  element.addEventListener("pointerup", finish);
  element.addEventListener("pointercancel", finish);
  element.addEventListener("pointerleave", () => {
    if (!dragging) handlers.leave?.();
  });
}
