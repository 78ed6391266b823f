// SPDX-License-Identifier: MIT OR Apache-2.0
// Opens a built page as a person would, in both themes and at both widths, and measures what is promised of it.
//
//   npm test -- page.html [--pictures FOLDER] [--slow]
//
// Promised: nothing on the console, nothing fetched, the first picture within 2 s, frames of panning and zooming under
// 33 ms, no finding of axe-core. `--slow` is for machines that are busy with
// other things: times on the clock are only reported, and frames are judged by the processor's time.
import axe from "axe-core";
import { chromium } from "playwright-core";
import { mkdirSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const file = process.argv.slice(2).find((argument) => !argument.startsWith("--") && argument.endsWith(".html"));
const option = (name) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : null);
const slow = process.argv.includes("--slow");
if (!file) {
  console.error("usage: npm test -- page.html [--pictures FOLDER] [--slow]");
  process.exit(2);
}
const address = pathToFileURL(resolve(file)).href;
const folder = option("--pictures") ?? mkdtempSync(join(tmpdir(), "report-"));
mkdirSync(folder, { recursive: true });

const FIRST_PICTURE_MS = 2000;
// Frames come in steps of a sixtieth of a second: two of them are 33.3 ms.
const FRAME_MS = 33.5;
let failures = 0;
function expect(holds, what, detail = "") {
  console.log(`${holds ? "ok  " : "FAIL"} ${what}${detail ? `: ${detail}` : ""}`);
  if (!holds) failures += 1;
}
const quantile = (values, q) => [...values].sort((one, other) => one - other)[Math.min(values.length - 1, Math.floor(values.length * q))] ?? 0;

const browser = await chromium.launch({
  executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(theme, width, fragment = "") {
  const context = await browser.newContext({ colorScheme: theme, viewport: { width, height: width < 600 ? 844 : 900 } });
  const page = await context.newPage();
  const said = [];
  const fetched = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    said.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (request.url() !== address && !request.url().startsWith(`${address}#`)) fetched.push(request.url());
  });
  await page.goto(address + fragment);
  await page.waitForFunction(() => performance.getEntriesByName("all-pictures").length > 0);
  return { context, page, said, fetched };
}

const settle = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

/** Times from frame to frame, of drawing, and of the processor, while something is done once per frame. */
async function framesOf(page, action) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const worked = async () => (await session.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value;
  const before = await worked();
  await page.evaluate(() => (window.tonnage.frames.length = 0));
  const gaps = await page.evaluate(
    (keys) =>
      new Promise((done) => {
        const gaps = [];
        let before = 0;
        let index = 0;
        const frame = (now) => {
          if (before) gaps.push(now - before);
          before = now;
          if (index >= 90) return done(gaps);
          const key = keys[index % keys.length];
          document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          index += 1;
          requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
      }),
    action,
  );
  const drawing = await page.evaluate(() => [...window.tonnage.frames]);
  const processor = ((await worked()) - before) * (1000 / gaps.length);
  await session.detach();
  return { gaps, drawing, processor };
}

for (const width of [1280, 390]) {
  for (const theme of ["light", "dark"]) {
    const { context, page, said, fetched } = await open(theme, width);
    const at = `${theme} at ${width}`;
    const first = await page.evaluate(() => performance.getEntriesByName("first-picture")[0].startTime);
    const all = await page.evaluate(() => performance.getEntriesByName("all-pictures")[0].startTime);
    expect(slow || first < FIRST_PICTURE_MS, `first picture, ${at}`, `${first.toFixed(0)} ms, all pictures ${all.toFixed(0)} ms`);
    await settle(page);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    expect(overflow <= 0, `no sideways scrolling, ${at}`, `${overflow} px`);
    await page.screenshot({ path: join(folder, `${theme}-${width}.png`) });
    await page.screenshot({ path: join(folder, `${theme}-${width}-whole.png`), fullPage: true });

    await page.evaluate(axe.source);
    const audit = async (what) => {
      const { violations } = await page.evaluate(() => window.axe.run());
      const found = violations.map((one) => `${one.id} (${one.nodes.length}): ${one.nodes[0]?.html.slice(0, 120)} ${one.nodes[0]?.failureSummary?.split("\n")[1] ?? ""}`);
      expect(violations.length === 0, `axe-core, ${what}, ${at}`, found.join("; "));
    };
    await audit("as opened");
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await settle(page);
    await audit("everything unfolded");
    await page.screenshot({ path: join(folder, `${theme}-${width}-unfolded.png`), fullPage: true });
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = false)));

    // Keys.
    const shown = () => page.evaluate(() => document.querySelector(".range").textContent);
    const whole = await shown();
    for (let press = 0; press < 6; press++) await page.keyboard.press("+");
    await settle(page);
    const zoomed = await shown();
    expect(zoomed !== whole, `+ zooms, ${at}`, zoomed);
    await page.keyboard.press("ArrowRight");
    await settle(page);
    expect((await shown()) !== zoomed, `→ pans, ${at}`);
    await page.waitForTimeout(250);
    expect((await page.evaluate(() => location.hash)).includes("rows="), `the address keeps the rows, ${at}`);
    await page.keyboard.press("s");
    await settle(page);
    await page.screenshot({ path: join(folder, `${theme}-${width}-step.png`), fullPage: true });
    await page.keyboard.press("0");
    await settle(page);
    expect((await shown()) === whole, `0 shows the whole, ${at}`);
    await page.keyboard.press("/");
    await page.keyboard.type("softmax");
    await settle(page);
    const status = await page.evaluate(() => document.querySelector("[role=status]").textContent);
    expect(/softmax/.test(status), `/ searches, ${at}`, status.slice(0, 90));
    await page.screenshot({ path: join(folder, `${theme}-${width}-found.png`) });
    await audit("while searching");
    await page.keyboard.press("Escape");
    await settle(page);
    expect(await page.evaluate(() => document.querySelector("#found").hidden), `Esc ends the search, ${at}`);
    await page.keyboard.press("?");
    expect(await page.evaluate(() => document.querySelector("dialog").open), `? opens the help, ${at}`);
    await audit("help");
    await page.screenshot({ path: join(folder, `${theme}-${width}-help.png`) });
    await page.keyboard.press("Escape");
    expect(!(await page.evaluate(() => document.querySelector("dialog").open)), `Esc closes it, ${at}`);

    // Focus that can be seen, and the tooltip under the pointer.
    const canvas = page.locator("#timeline canvas.main");
    await canvas.scrollIntoViewIfNeeded();
    await canvas.focus();
    await page.keyboard.press("ArrowLeft");
    const outline = await canvas.evaluate((element) => getComputedStyle(element).outlineStyle);
    expect(outline !== "none", `focus is visible, ${at}`, outline);
    const box = await canvas.boundingBox();
    await page.mouse.move(box.x + box.width * 0.6, box.y + box.height * 0.6);
    await settle(page);
    const tip = await page.evaluate(() => document.querySelector("#tip").textContent);
    expect(/allocated/.test(tip), `hover shows figures, ${at}`, tip.slice(0, 60));
    await page.screenshot({ path: join(folder, `${theme}-${width}-hover.png`) });
    const addresses = page.locator("#addresses canvas.main");
    await addresses.scrollIntoViewIfNeeded();
    const space = await addresses.boundingBox();
    await page.mouse.move(space.x + space.width * 0.6, space.y + 16);
    await settle(page);
    await page.screenshot({ path: join(folder, `${theme}-${width}-block.png`) });
    await page.mouse.move(2, 2);

    // The plan: its figures, its picture, what lies under the pointer, and offsets of its own.
    const figures = await page.evaluate(() => document.querySelector("#plan")?.textContent ?? "");
    expect(/peak of the plan/.test(figures) && /lower bound/.test(figures) && /reserved in the recording/.test(figures), `the plan has its figures, ${at}`);
    const packing = page.locator("#plan canvas.main");
    await packing.scrollIntoViewIfNeeded();
    await settle(page);
    await page.waitForTimeout(250);
    const colours = await packing.evaluate((element) => {
      const { data } = element.getContext("2d").getImageData(0, 0, element.width, element.height);
      return new Set(new Uint32Array(data.buffer)).size;
    });
    expect(colours > 4, `the plan is drawn when it comes into view, ${at}`, `${colours} colours`);
    const arena = await packing.boundingBox();
    let place = "";
    for (const share of [0.02, 0.1, 0.3, 0.5, 0.7]) {
      await page.mouse.move(arena.x + arena.width * 0.6, arena.y + 4 + (arena.height - 8) * share);
      await settle(page);
      place = await page.evaluate(() => document.querySelector("#tip").textContent);
      if (/planned at offset/.test(place)) break;
    }
    expect(/planned at offset/.test(place), `a block says where the plan puts it, ${at}`, place.slice(0, 90));
    await page.screenshot({ path: join(folder, `${theme}-${width}-plan.png`) });
    const addressBand = await page.evaluate(() => location.hash);
    await packing.focus();
    await page.keyboard.press("Shift++");
    await page.waitForTimeout(250);
    expect((await page.evaluate(() => location.hash)) === addressBand, `zooming into offsets leaves addresses alone, ${at}`);
    await page.screenshot({ path: join(folder, `${theme}-${width}-plan-zoomed.png`) });
    await page.locator("#plan .section-tools button", { hasText: "all" }).click();
    await audit("the plan");
    await page.mouse.move(2, 2);

    if (theme === "light") {
      for (const [what, keys] of [
        ["zooming", ["+", "+", "+", "-", "-", "-"]],
        ["zooming deep", ["+"]],
        ["panning", ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"]],
        ["zooming with the plan in view", ["+", "+", "+", "-", "-", "-"]],
      ]) {
        await page.evaluate((plan) => (plan ? document.querySelector("#plan").scrollIntoView() : window.scrollTo(0, 0)), what.endsWith("in view"));
        await page.keyboard.press("0");
        if (what === "panning") for (let press = 0; press < 5; press++) await page.keyboard.press("+");
        await settle(page);
        // What else runs on the machine only ever adds to a time: the least of three counts.
        let { gaps, drawing, processor } = await framesOf(page, keys);
        for (let again = 0; again < 2 && processor >= FRAME_MS; again += 1) {
          ({ gaps, drawing, processor } = await framesOf(page, keys));
        }
        const detail = `from frame to frame median ${quantile(gaps, 0.5).toFixed(1)}, 95th ${quantile(gaps, 0.95).toFixed(1)} ms; drawing median ${quantile(drawing, 0.5).toFixed(1)}, 95th ${quantile(drawing, 0.95).toFixed(1)}, most ${quantile(drawing, 1).toFixed(1)} ms; processor ${processor.toFixed(1)} ms per frame`;
        expect(processor < FRAME_MS && (slow || quantile(gaps, 0.5) < FRAME_MS), `frames of ${what}, ${at}`, detail);
      }
    }
    expect(said.length === 0, `nothing on the console, ${at}`, said.slice(0, 3).join(" | "));
    expect(fetched.length === 0, `nothing fetched, ${at}`, fetched.slice(0, 3).join(" "));
    await context.close();
  }
}

{
  // A link shows what its maker saw.
  const { context, page } = await open("light", 1280, "#rows=1000-3000&find=softmax&theme=dark&by=stack");
  const state = await page.evaluate(() => [document.querySelector(".range").textContent, document.querySelector("#search").value, document.documentElement.dataset.theme, document.querySelector("#grouping").value]);
  expect(state.join("|") === "rows 1,000 to 3,000|softmax|dark|stack", "a link keeps rows, search, theme and grouping", state.join(", "));
  await page.emulateMedia({ media: "print" });
  await page.pdf({ path: join(folder, "print.pdf"), format: "A4" }).catch(() => undefined);
  await page.screenshot({ path: join(folder, "print.png"), fullPage: true });
  await context.close();
}
await browser.close();
console.log(`pictures in ${folder}`);
console.log(failures === 0 ? "all of it holds" : `${failures} do not hold`);
process.exit(failures === 0 ? 0 : 1);
