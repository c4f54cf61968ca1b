// Headless Chromium of the system, with a dashboard session.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PATHS = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = PATHS.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("Chromium not found; set CHROMIUM=/path");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

/** Open the dashboard with a login link. Collects the errors of the page. */
export async function openDashboard(browser, link, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, ...options });
  context.setDefaultTimeout(90_000); // only for a page that hangs: on a busy machine a step takes many times as long
  const page = await context.newPage();
  const pageErrors = [];
  page.on("pageerror", (error) => pageErrors.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" || /Content Security|Trusted/.test(message.text())) pageErrors.push(`console: ${message.text()}`);
  });
  await page.goto(link);
  await page.getByText("live", { exact: true }).waitFor();
  return { context, page, pageErrors };
}
