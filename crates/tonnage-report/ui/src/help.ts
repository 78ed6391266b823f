// SPDX-License-Identifier: MIT OR Apache-2.0
// The keys of the page.

import { el } from "./dom";
import { button } from "./parts";

const KEYS: [string[], string][] = [
  [["←", "→"], "pan"],
  [["+", "−"], "zoom in and out; with Shift in the address space or the plan, addresses or offsets"],
  [["0"], "all of the recording"],
  [["s"], "the step around the chosen moment"],
  [[",", "."], "previous and next moment"],
  [["p"], "the failure or the peak"],
  [["f"], "the blocks of the next finding"],
  [["u"], "the blocks that are never used again at the chosen moment"],
  [["/"], "search stacks, lines, modules, tensors and holders"],
  [["g"], "how parts are grouped: by module or by call stack"],
  [["y"], "scale to the peak or to the capacity"],
  [["t"], "light or dark"],
  [["Esc"], "close, clear the search or the selection, go back out"],
  [["?"], "this help"],
];

export function helpDialog(): HTMLDialogElement {
  const dialog = el("dialog", { "aria-labelledby": "help-title" });
  dialog.append(
    el("h2", { id: "help-title" }, "Keys"),
    el("dl", { class: "keys" }, ...KEYS.flatMap(([names, text]) => [el("dt", {}, ...names.flatMap((name, index) => [index ? " " : "", el("kbd", {}, name)])), el("dd", {}, text)])),
    el("p", {}, "With the mouse: drag pans, Ctrl or ⌘ with the wheel zooms, Shift and drag zooms into a range, a click chooses a moment or a block. The address of the page keeps what is shown, so a link to it shows the same."),
    button("close", "Close the help", () => dialog.close()),
  );
  return dialog;
}
