// SPDX-License-Identifier: MIT OR Apache-2.0
// Keys that act on a pane, wherever the focus is.

import type { Pane } from "./pane";

/** Applies a key to a pane; returns whether the key had an effect. */
export function paneKey(pane: Pane, event: KeyboardEvent): boolean {
  const { view } = pane;
  const { addresses, plan } = pane;
  const target = event.target as HTMLElement;
  const picture = [addresses.picture, plan.picture].find((one) => event.shiftKey && target === one?.surface.canvas);
  const band = picture && picture === plan.picture ? plan.band : view;
  switch (event.key) {
    case "ArrowLeft":
      view.pan(-0.12);
      return true;
    case "ArrowRight":
      view.pan(0.12);
      return true;
    case "ArrowUp":
    case "ArrowDown": {
      if (!picture) return false;
      const shift = (event.key === "ArrowUp" ? -0.1 : 0.1) * (band.bottom - band.top);
      band.showAddresses(band.top + shift, band.bottom + shift);
      return true;
    }
    case "+":
    case "=":
      if (picture) picture.zoomAddresses(0.625);
      else view.zoom(0.625, view.centre);
      return true;
    case "-":
    case "_":
      if (picture) picture.zoomAddresses(1.6);
      else view.zoom(1.6, view.centre);
      return true;
    case "0":
    case "Home":
      view.show(0, pane.timeline.rows);
      return true;
    case "s":
      view.showStep();
      return true;
    case "p": {
      const first = pane.timeline.firstMoment();
      if (first) view.choose(first.row);
      view.reveal();
      return true;
    }
    case "u":
      pane.pickUnused();
      return true;
    case "g":
      view.switchGrouping();
      return true;
    case "y":
      view.switchScale();
      return true;
    default:
      return false;
  }
}
