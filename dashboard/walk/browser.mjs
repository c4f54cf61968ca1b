// A headless Chromium of the system, and what every walk needs of it.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function open() {
  const executablePath = PLACES.find((place) => place && existsSync(place));
  if (!executablePath) throw new Error("there is no Chromium here; name it with CHROMIUM=/path");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

/** A page with a session. Whatever goes wrong in it is collected. */
export async function enter(browser, link, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" || /Content Security|Trusted/.test(message.text())) complaints.push(`console: ${message.text()}`);
  });
  await page.goto(link);
  await page.getByText("live", { exact: true }).waitFor();
  return { context, page, complaints };
}
