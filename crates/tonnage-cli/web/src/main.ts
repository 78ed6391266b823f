// SPDX-License-Identifier: MIT OR Apache-2.0
// The page that answers from a file without sending it anywhere: it runs the tonnage command, as WebAssembly, in a worker.
// The words of its answers are those of the command.

import type { Answer, Message, Question } from "./worker";

declare global {
  interface Window {
    tonnage: { ask(words: string[]): Promise<Answer>; choose(file: File): Promise<void> };
  }
}

const $ = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;
const text = (id: string): string => ($(id).textContent ?? "").trim();

/** Bytes of an embedded file. */
async function embedded(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const packed = Uint8Array.from(atob(text(id)), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const module: Promise<WebAssembly.Module> = embedded("command").then((bytes) => WebAssembly.compile(bytes));
const program = URL.createObjectURL(new Blob([text("worker")], { type: "text/javascript" }));

/** The chosen file, and the name that the command knows it by. */
interface Chosen {
  file: File;
  name: string;
}
let chosen: Chosen | null = null;
let running: Worker | null = null;
/** Raised when another file is chosen, so that answers about the one before are dropped. */
let generation = 0;

const bytes = (count: number): string => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(Math.max(count, 1)) / 10), units.length - 1);
  return power === 0 ? `${count} B` : `${(count / 2 ** (10 * power)).toFixed(2)} ${units[power]}`;
};

/** Runs the command with these words; `FILE` among them is the chosen file. */
async function ask({ file, name }: Chosen, words: string[], show: (percent: number) => void): Promise<Answer> {
  const compiled = await module;
  const worker = new Worker(program);
  running = worker;
  try {
    return await new Promise<Answer>((resolve, reject) => {
      worker.onmessage = ({ data }: MessageEvent<Message>) => {
        if ("percent" in data) show(data.percent);
        else if ("answer" in data) resolve(data.answer);
        else reject(new Error(data.failure));
      };
      worker.onerror = (event) => reject(new Error(event.message || "the worker ended"));
      const named = words.map((word) => (word === "FILE" ? name : word));
      const question: Question = { module: compiled, file, name, words: ["tonnage", ...named] };
      worker.postMessage(question);
    });
  } finally {
    worker.terminate();
    if (running === worker) running = null;
  }
}

/** The part of the JSON of the command that the page shows. */
interface Explained {
  outcome: "out_of_memory" | "ran";
  gpu: string | null;
  need: { bytes: number; gpus: string[]; complete: boolean } | null;
}
interface Replays {
  tracks: { context: number; allocators: { recorded: boolean; smallest: { bytes: number } | null }[] }[];
}
interface Gpus {
  gpus: { id: string; name: string; total_memory: { value: number } }[];
}

const GPUS_SHOWN = 5;

/** The GPUs that would have sufficed, in a sentence. */
async function sufficient(about: Chosen, explained: Explained, show: (percent: number) => void): Promise<string> {
  const list = (names: string[], least: string, need: string): string => {
    if (names.length === 0) return `Needs ${least}${need}: no GPU of the catalogue has as much memory.`;
    const shown = names.slice(0, GPUS_SHOWN).join(", ");
    const more = names.length > GPUS_SHOWN ? ` and ${names.length - GPUS_SHOWN} more` : "";
    return least ? `Needs at least ${need}; the smallest GPU that may suffice: ${names[0]}.` : `Needs ${need}; fits on ${shown}${more}.`;
  };
  if (explained.need) return list(explained.need.gpus, explained.need.complete ? "" : "at least ", bytes(explained.need.bytes));
  const replayed = await ask(about, ["replay", "--json", "--alloc", "recorded", "FILE"], show);
  if (replayed.code === 2) return "";
  const track = (JSON.parse(replayed.stdout) as Replays).tracks[0];
  const smallest = track?.allocators[0]?.smallest?.bytes;
  if (!track || smallest === undefined) return "";
  const catalogue = JSON.parse((await ask(about, ["gpus", "--json"], show)).stdout) as Gpus;
  const large = catalogue.gpus.filter((gpu) => gpu.total_memory.value >= smallest).sort((one, other) => one.total_memory.value - other.total_memory.value);
  // A recording that ends out of memory shows a part of the job.
  const least = explained.outcome === "out_of_memory" || track.context === 0 ? "at least " : "";
  const names = large.map((gpu) => gpu.id);
  const context = track.context === 0 ? " CUDA's context, which comes on top, is not recorded." : "";
  return `${list(names, least, bytes(smallest))} Every recorded request was replayed.${context}`;
}

function progress(label: string, percent: number | null): void {
  $("progress").hidden = false;
  $("progress-label").textContent = label;
  const bar = $<HTMLProgressElement>("bar");
  if (percent === null) bar.removeAttribute("value");
  else bar.value = percent;
}

function failed(words: string): void {
  $("progress").hidden = true;
  $("failure").hidden = false;
  $("failure").textContent = words;
}

/** A command that ended without an answer, in its own words. */
function refused({ stderr }: Answer): string {
  return stderr.trim() || "The command ended without an answer.";
}

const isMemory = (message: string): boolean => /memory allocation|out of bounds|out of memory|unreachable|allocation failed/i.test(message);

function describe(error: unknown, about: Chosen): string {
  const message = error instanceof Error ? error.message : String(error);
  const local = `Run it on your machine instead: pip install tonnage && tonnage explain ${about.name}`;
  if (isMemory(message)) return `The file is damaged, or it needs more memory than a browser tab has (4 GiB).\n${local}\n\n${message}`;
  return `${message}\n${local}`;
}

/** Answers from a file, the cause first. */
async function choose(file: File): Promise<void> {
  running?.terminate();
  generation += 1;
  const mine = generation;
  const current = (): boolean => mine === generation;
  const name = file.name.replace(/^.*[\\/]/, "").replace(/^-+/, "") || "recording";
  const about: Chosen = { file, name };
  chosen = about;
  for (const id of ["failure", "answer", "tools", "report", "words"]) $(id).hidden = true;
  $("chosen").textContent = `${name}, ${bytes(file.size)}`;
  const at = (label: string) => (percent: number): void => {
    if (current()) progress(label, percent);
  };
  try {
    progress("Reading and explaining", null);
    const explained = await ask(about, ["explain", "--json", "FILE"], at("Reading and explaining"));
    if (!current()) return;
    if (explained.code === 2) return failed(refused(explained));
    const json = JSON.parse(explained.stdout) as Explained;
    progress("Drawing the report", null);
    const drawn = await ask(about, ["report", "FILE", "-o", "-"], at("Drawing the report"));
    if (!current()) return;
    if (drawn.code === 2) return failed(refused(drawn));
    showReport(drawn.stdout, name);
    progress("Searching for the smallest GPU", null);
    const sentence = await sufficient(about, json, at("Searching for the smallest GPU"));
    if (!current()) return;
    $("answer").textContent = sentence;
    $("answer").hidden = sentence === "";
    $("progress").hidden = true;
    document.body.dataset["done"] = String(mine);
  } catch (error) {
    if (current()) failed(describe(error, about));
  }
}

let page: Blob | null = null;
function showReport(html: string, name: string): void {
  page = new Blob([html], { type: "text/html" });
  const frame = $<HTMLIFrameElement>("report");
  URL.revokeObjectURL(frame.src);
  frame.src = URL.createObjectURL(page);
  frame.title = `Report of ${name}`;
  $("tools").hidden = false;
  select("report");
}

/** Shows the report, or the text of a command. */
function select(tab: string): void {
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-tab]")) button.setAttribute("aria-pressed", String(button.dataset["tab"] === tab));
  $("report").hidden = tab !== "report";
  $("words").hidden = tab === "report";
}

/** The words of each button's command. */
const COMMANDS: Record<string, string[]> = {
  explain: ["explain", "--verbose", "FILE"],
  replay: ["replay", "FILE"],
  tune: ["replay", "--search", "FILE"],
};

async function showWords(tab: string): Promise<void> {
  const about = chosen;
  const words = COMMANDS[tab];
  if (!about || !words) return;
  const mine = generation;
  select(tab);
  const typed = words.map((word) => (word === "FILE" ? about.name : word)).join(" ");
  $("words").textContent = `$ tonnage ${typed}\n`;
  try {
    progress(`tonnage ${words[0]}`, null);
    const answer = await ask(about, words, (percent) => progress(`tonnage ${words[0]}`, percent));
    if (mine !== generation) return;
    $("words").textContent += `${answer.stderr}${answer.stdout}`;
    $("progress").hidden = true;
  } catch (error) {
    if (mine === generation) failed(describe(error, about));
  }
}

/** Hands a file to the user. */
function save(content: BlobPart, name: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function saveJson(): Promise<void> {
  if (!chosen) return;
  const about = chosen;
  const answer = await ask(about, ["explain", "--json", "FILE"], (percent) => progress("tonnage explain --json", percent));
  $("progress").hidden = true;
  save(answer.stdout, `${about.name}.json`, "application/json");
}

const picker = $<HTMLInputElement>("file");
picker.addEventListener("change", () => {
  const [file] = picker.files ?? [];
  if (file) void choose(file);
});
$("example").addEventListener("click", () => {
  void embedded("recording").then((content) => choose(new File([content], "oom.tonnage")));
});
for (const button of document.querySelectorAll<HTMLButtonElement>("[data-tab]")) {
  button.addEventListener("click", () => (button.dataset["tab"] === "report" ? select("report") : void showWords(button.dataset["tab"] ?? "")));
}
$("save-report").addEventListener("click", () => {
  if (page && chosen) save(page, `${chosen.name}.html`, "text/html");
});
$("save-json").addEventListener("click", () => void saveJson());

// A file that is dropped anywhere on the page is for it; without this the browser would open the file.
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", () => document.body.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  const [file] = event.dataTransfer?.files ?? [];
  if (file) void choose(file);
});

window.tonnage = {
  ask: (words) => (chosen ? ask(chosen, words, () => undefined) : Promise.reject(new Error("no file is chosen"))),
  choose,
};
