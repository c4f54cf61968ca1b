// Pictures of pages of the documentation site, wide and narrow, and what a reader of any page would notice.
//   node docs.mjs BASE FOLDER < JSON: {"pictures": [path…], "pages": [path…], "moved": {path: path}}
// Prints one problem per line: a request to another host, an error of a script, a page wider than the screen, a lost address.
import { mkdirSync, readFileSync } from "node:fs";
import { launch } from "./browser.mjs";

const WIDTHS = [1280, 390];
const [base, folder] = process.argv.slice(2);
const { pictures, pages, moved } = JSON.parse(readFileSync(0, "utf8"));
const problems = new Set();
mkdirSync(folder, { recursive: true });

const browser = await launch();
const page = await browser.newPage();
let at = "";
page.on("request", (request) => {
  const { protocol, host } = new URL(request.url());
  if (protocol !== "data:" && protocol !== "blob:" && host !== new URL(base).host) {
    problems.add(`${at}: a request to ${host}`);
  }
});
page.on("response", (response) => {
  if (response.status() >= 400) problems.add(`${at}: ${response.status()} for ${response.url()}`);
});
page.on("pageerror", (error) => problems.add(`${at}: ${error.message}`));

async function open(path, settled) {
  at = path;
  await page.goto(base + path, { waitUntil: settled ? "networkidle" : "load" });
}

const resize = (width) => page.setViewportSize({ width, height: width > 800 ? 900 : 844 });
for (const path of pages) {
  await resize(WIDTHS[0]);
  await open(path, false);
  for (const width of WIDTHS) {
    await resize(width);
    const shown = await page.evaluate(() => document.documentElement.scrollWidth);
    if (shown > width) problems.add(`${path}: ${shown} pixels wide on a screen of ${width}`);
  }
}
for (const path of pictures) {
  const name = path.replace(/^\/|\/$/g, "").replaceAll("/", "-") || "home";
  for (const width of WIDTHS) {
    await resize(width);
    await open(path, true);
    // Not `fullPage`, which would start the animation of the menu again.
    const height = await page.evaluate(() => document.documentElement.scrollHeight);
    await page.setViewportSize({ width, height });
    await page.waitForTimeout(700);
    await page.screenshot({ path: `${folder}/${name}-${width}.png` });
  }
}
for (const [old, now] of Object.entries(moved)) {
  await open(old, false);
  const arrived = await page.waitForURL(base + now, { timeout: 5000 }).then(() => true, () => false);
  if (!arrived) problems.add(`${old}: leads to ${page.url().slice(base.length)}, not to ${now}`);
}
await browser.close();
for (const problem of problems) console.log(problem);
process.exit(problems.size ? 1 : 0);
