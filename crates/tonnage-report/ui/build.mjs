// SPDX-License-Identifier: MIT OR Apache-2.0
// Builds the page's program and style into ../assets, or with --check compares them with what is there.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "node:fs";

const check = process.argv.includes("--check");
const MAX_BYTES = 400 * 1024;
const result = await build({
  entryPoints: { report: "src/main.ts", style: "src/style.css" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  outdir: "../assets",
  write: false,
});
let sum = 0;
let stale = false;
for (const file of result.outputFiles) {
  const name = file.path.endsWith(".css") ? "report.css" : "report.js";
  const target = new URL(`../assets/${name}`, import.meta.url);
  const text = file.text;
  // The program stands inside a <script> element.
  if (/<\/(script|style)/i.test(text)) throw new Error(`${name} would end its own element`);
  sum += Buffer.byteLength(text);
  if (!check) {
    writeFileSync(target, text);
  } else if (readFileSync(target, "utf8") !== text) {
    console.error(`assets/${name} is not what ui/ builds; run \`npm run build\` and commit it`);
    stale = true;
  }
}
console.log(`program and style: ${(sum / 1024).toFixed(1)} KiB`);
if (sum > MAX_BYTES) {
  console.error(`more than ${MAX_BYTES / 1024} KiB`);
  stale = true;
}
process.exit(stale ? 1 : 0);
