// SPDX-License-Identifier: MIT OR Apache-2.0
// Opens the page in Chromium, offline, and compares its answers with those of the command.
//
//   npm test -- PAGE TONNAGE FILE... [--pictures FOLDER]
//
// TONNAGE is the native command. Each FILE is opened as a person would open it. Promised: the JSON of explain, replay and
// its search equals that of the command; the report is drawn; no request leaves the page; no finding of axe-core; a
// damaged file ends with an error and a next step.
import axe from "axe-core";
import { chromium } from "playwright-core";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { isDeepStrictEqual } from "node:util";

const at = process.argv.indexOf("--pictures");
const pictures = at < 0 ? null : process.argv[at + 1];
const [page, tonnage, ...files] = process.argv.slice(2, at < 0 ? undefined : at);
if (files.length === 0) {
  console.error("usage: npm test -- PAGE TONNAGE FILE... [--pictures FOLDER]");
  process.exit(2);
}
const folder = mkdtempSync(join(tmpdir(), "web-"));
if (pictures) mkdirSync(pictures, { recursive: true });
let failures = 0;
function expect(holds, what, detail = "") {
  console.log(`${holds ? "ok  " : "FAIL"} ${what}${detail ? `: ${detail}` : ""}`);
  if (!holds) failures += 1;
}
const PATIENCE = 180_000;

const browser = await chromium.launch({
  executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const address = pathToFileURL(resolve(page)).href;

async function open(theme) {
  const context = await browser.newContext({ colorScheme: theme, viewport: { width: 1280, height: 900 }, offline: true });
  const tab = await context.newPage();
  tab.setDefaultTimeout(PATIENCE);
  const requests = [];
  const said = [];
  // These are of the whole context: also those of workers and of the report.
  context.on("request", (request) => {
    if (request.url() !== address && !/^(blob|data):/.test(request.url())) requests.push(request.url());
  });
  tab.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  tab.on("pageerror", (error) => said.push(`error: ${error.message}`));
  await tab.goto(address);
  return { context, tab, requests, said };
}

/** Waits until the page has answered or failed. */
const settled = (tab) => tab.waitForFunction(() => document.getElementById("progress").hidden && (!document.getElementById("tools").hidden || !document.getElementById("failure").hidden));

/** The JSON without what differs by the place of the file. */
function answer(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const QUESTIONS = [
  ["explain", "--json", "FILE"],
  ["replay", "--json", "FILE"],
  ["replay", "--search", "--json", "FILE"],
  ["info", "--json", "FILE"],
];
// A search replays hundreds of settings.
const SEARCHED_BYTES = 4 << 20;

for (const file of files) {
  const { context, tab, requests, said } = await open(file === files[0] ? "light" : "dark");
  const begun = performance.now();
  await tab.setInputFiles("#file", file);
  await tab.waitForFunction(() => !document.getElementById("report").hidden || !document.getElementById("failure").hidden);
  const drawn = performance.now() - begun;
  await settled(tab);
  const failure = await tab.locator("#failure").textContent();
  expect(failure === "", `${basename(file)} is explained`, failure);
  if (failure) {
    await context.close();
    continue;
  }
  const sentence = await tab.locator("#answer").textContent();
  console.log(`     ${(statSync(file).size / 2 ** 20).toFixed(1)} MiB: report after ${(drawn / 1000).toFixed(1)} s; ${sentence}`);
  const frame = tab.frames().find((one) => one !== tab.mainFrame());
  await frame?.waitForFunction(() => performance.getEntriesByName("all-pictures").length > 0).catch(() => undefined);
  expect((await frame?.locator("canvas").count()) > 0, "the report has pictures");
  for (const question of QUESTIONS) {
    if (question.includes("--search") && statSync(file).size > SEARCHED_BYTES) continue;
    const theirs = await tab.evaluate((words) => window.tonnage.ask(words), question);
    const words = question.map((word) => (word === "FILE" ? basename(file) : word));
    const ours = spawnSync(tonnage, words, { cwd: dirname(resolve(file)), encoding: "utf8", maxBuffer: 1 << 30 });
    const same = isDeepStrictEqual(answer(theirs.stdout), answer(ours.stdout)) && theirs.stdout.length > 2 && theirs.code === ours.status;
    expect(same, `tonnage ${words.join(" ")}`, `${(theirs.milliseconds / 1000).toFixed(1)} s, ${(theirs.memory / 2 ** 20).toFixed(0)} MiB, ${theirs.stdout.length} bytes`);
    if (!same) {
      writeFileSync(join(folder, "page.json"), theirs.stdout);
      writeFileSync(join(folder, "command.json"), ours.stdout);
      console.log(`     exit codes ${theirs.code} and ${ours.status}; compare page.json and command.json in ${folder}\n${theirs.stderr}${ours.stderr}`);
    }
  }
  if (pictures) await tab.screenshot({ path: join(pictures, `${basename(file)}.png`) });
  expect(requests.length === 0, "no request leaves the page", requests.join(", "));
  expect(said.length === 0, "nothing is on the console", said.join("; "));
  await context.close();
}

{
  const { context, tab, requests } = await open("light");
  await tab.click("#example");
  await settled(tab);
  expect((await tab.locator("#answer").textContent()).startsWith("Needs "), "the example is explained");
  // The frame has tests of its own.
  await tab.evaluate(axe.source);
  const found = await tab.evaluate(() => window.axe.run(document, { iframes: false }));
  expect(found.violations.length === 0, "axe-core finds nothing", found.violations.map((one) => `${one.id} ${one.nodes[0]?.html}`).join("; "));
  if (pictures) await tab.screenshot({ path: join(pictures, "example.png") });
  for (const [name, content] of [["not-a-recording.pickle", "no recording"], ["cut.tonnage", "\xff\xff\xff\xff\x10"], ["empty.pickle", ""]]) {
    const path = join(folder, name);
    writeFileSync(path, content, "latin1");
    await tab.setInputFiles("#file", path);
    await tab.waitForFunction((name) => document.getElementById("chosen").textContent.startsWith(name), name);
    await settled(tab);
    const words = await tab.locator("#failure").textContent();
    expect(/hint|pip install/.test(words), `${name} ends with a next step`, words.replaceAll("\n", " "));
  }
  // The browser, and not the good will of the page, keeps data here.
  const refused = await tab.evaluate(() => fetch("https://example.com/").then(() => "sent", (error) => String(error)));
  await tab.evaluate(() => navigator.sendBeacon("https://example.com/", "data"));
  expect(refused !== "sent" && requests.length === 0, "the policy of the page blocks requests", `${refused}, ${requests.length} sent`);
  await context.close();
}
await browser.close();
console.log(failures ? `${failures} failed` : "all hold");
process.exit(failures ? 1 : 0);
