// SPDX-License-Identifier: MIT OR Apache-2.0
// Puts the page, its programs, the command and an example into one file:  node build.mjs TONNAGE_WASM PAGE
import { build } from "esbuild";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { gzipSync } from "node:zlib";

const MAX_COMMAND = 2 << 20;
const [command, target] = process.argv.slice(2);
if (!target) {
  console.error("usage: node build.mjs TONNAGE_WASM PAGE\nhint: crates/tonnage-cli/web/README.md has the command that builds both");
  process.exit(2);
}
const here = (name) => new URL(name, import.meta.url);
const built = await build({
  entryPoints: { main: "src/main.ts", worker: "src/worker.ts", style: "src/style.css" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  outdir: "out",
  write: false,
});
const texts = Object.fromEntries(built.outputFiles.map((file) => [file.path.split("/").at(-1), file.text]));
for (const [name, text] of Object.entries(texts)) {
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`${name} would end its own element`);
}
const packed = (path) => gzipSync(readFileSync(path), { level: 9 });
const wasm = packed(command);
const version = /^version = "(.*)"$/m.exec(readFileSync(here("../../../Cargo.toml"), "utf8"))[1];
const parts = {
  STYLE: texts["style.css"],
  VERSION: version,
  WORKER: texts["worker.js"],
  COMMAND: wasm.toString("base64"),
  RECORDING: packed(here("../../../python/tonnage/examples/oom.tonnage")).toString("base64"),
  PROGRAM: texts["main.js"],
};
const page = readFileSync(here("src/page.html"), "utf8").replace(/__([A-Z]+)__/g, (_, part) => parts[part]);
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, page);
const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(2)} MiB`;
console.log(`${target}: ${mebibytes(Buffer.byteLength(page))}; the command takes ${mebibytes(wasm.length)} of at most ${mebibytes(MAX_COMMAND)}, compressed`);
if (wasm.length > MAX_COMMAND) {
  console.error("the command is too large");
  process.exit(1);
}
