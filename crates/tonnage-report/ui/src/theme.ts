// SPDX-License-Identifier: MIT OR Apache-2.0
// Light and dark, and paper: what is printed is light and drawn before the browser lays it out, because no frame would
// draw it afterwards.

import { el, Surface } from "./dom";

export type Theme = "system" | "light" | "dark";

export class ThemeSwitch {
  readonly button: HTMLButtonElement;
  private theme: Theme;

  constructor(private readonly redraw: () => void) {
    const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
    this.theme = asked === "light" || asked === "dark" ? asked : "system";
    this.button = el("button", { type: "button" });
    this.button.addEventListener("click", () => this.toggle());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.apply());
    const print = (printing: boolean) => {
      if (printing) {
        Surface.printing = true;
        document.documentElement.dataset["theme"] = "light";
        this.redraw();
      } else {
        Surface.printing = false;
        this.apply();
      }
    };
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
    window.matchMedia("print").addEventListener("change", (change) => print(change.matches));
    this.set();
  }

  get dark(): boolean {
    return this.theme === "system" ? window.matchMedia("(prefers-color-scheme: dark)").matches : this.theme === "dark";
  }

  /** The theme in the address of the page, if it is not the system's. */
  get kept(): string | null {
    return this.theme === "system" ? null : this.theme;
  }

  toggle(): void {
    this.theme = this.dark ? "light" : "dark";
    this.apply();
  }

  private set(): void {
    document.documentElement.dataset["theme"] = this.dark ? "dark" : "light";
    const text = this.dark ? "light theme" : "dark theme";
    this.button.textContent = text;
    this.button.title = `Switch to the ${text} (t)`;
  }

  private apply(): void {
    this.set();
    this.redraw();
  }
}
