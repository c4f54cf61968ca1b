// Through every page of the dashboard of a gateway that runs, as a person would go.
//   node walk.mjs '{"link": …, "failing": …, "reason": …, "tool": "server.tool", "canary": …, "hostile": …}'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { enter, open } from "./browser.mjs";

const given = JSON.parse(process.argv[2]);
const base = new URL("/dashboard", given.link).href;
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const figures = {};
const faults = [];

const browser = await open();
const { context, page, complaints } = await enter(browser, given.link);
const elsewhere = [];
page.on("request", (request) => {
  if (!request.url().startsWith(new URL(base).origin) && !request.url().startsWith("data:")) elsewhere.push(request.url());
});
page.on("dialog", (dialog) => {
  faults.push(`a dialog was opened: ${dialog.message()}`);
  void dialog.dismiss();
});

const at = (path) => page.goto(base + path);
const button = (name, exact = true) => page.getByRole("button", { name, exact });
const step = async (name, act) => {
  const begun = Date.now();
  await act();
  console.log(`  ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
};

/** No serious fault for people who cannot see well, in either colour; nothing of a server has run; no secret is shown. */
async function inspect(name) {
  await page.waitForTimeout(150);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    // axe must be put into the page past its policy: by the debugger, not by a script element.
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const each of violations.filter((each) => ["serious", "critical"].includes(each.impact))) {
      faults.push(`${name}, ${colorScheme}: ${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  if (await page.evaluate(() => window.__owned !== undefined)) faults.push(`${name}: a server's text has run`);
  const html = await page.content();
  if (given.canary && html.includes(given.canary)) faults.push(`${name}: the secret is shown`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth + 1);
  if (wide) faults.push(`${name}: wider than the window`);
}

const cdp = await context.newCDPSession(page);
await cdp.send("Performance.enable", { timeDomain: "threadTicks" });

/** Milliseconds that the page has worked so far, whatever else the machine did meanwhile. */
async function worked() {
  const { metrics } = await cdp.send("Performance.getMetrics");
  return 1000 * metrics.find((each) => each.name === "TaskDuration").value;
}

try {
  await step("the session leaves nothing in the address bar", async () => {
    assert.equal(new URL(page.url()).hash, "");
    const [cookie] = await context.cookies(new URL("/admin", base).href);
    assert.ok(cookie.httpOnly && cookie.sameSite === "Strict");
    assert.equal(await page.evaluate(() => document.cookie), "");
  });
  await step("first paint", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    figures.first_paint_ms = Math.round(paint);
    assert.ok(paint < 1000, `first paint after ${paint} ms`);
  });
  await step("the reason of a failing server in two clicks", async () => {
    await inspect("home");
    await page.locator("nav").getByRole("link", { name: /Servers/ }).click(); // the first
    await page.getByRole("link", { name: given.failing, exact: true }).click(); // and the second
    await page.getByRole("region", { name: "Why" }).getByText(given.reason).first().waitFor();
    await inspect("server");
  });
  await step("servers: filter, order, every tab", async () => {
    await at("/servers");
    await page.getByRole("searchbox").fill(given.failing);
    await page.waitForURL(/q=/);
    await page.locator(".row.opens", { hasText: given.failing }).waitFor();
    await at("/servers?sort=-calls");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    await inspect("servers");
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.waitForURL(/servers\/[^?]+$/);
    await at(`/servers/${given.tool.split(".")[0]}`);
    for (const tab of ["Calls", "Tools", "Log", "Config", "Resilience"]) {
      await page.getByRole("tab", { name: tab }).click();
      await inspect(`server, ${tab}`);
    }
  });
  await step(given.cluster ? "nodes, and who owns a server" : "nobody who is alone hears of nodes", async () => {
    await at("/servers");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    const owner = page.getByRole("columnheader", { name: "Owner" });
    const nodes = page.locator("nav").getByRole("link", { name: "Nodes" });
    assert.deepEqual([await owner.count(), await nodes.count()], given.cluster ? [1, 1] : [0, 0]);
    if (!given.cluster) return;
    await page.getByRole("link", { name: /^walk-/ }).first().click();
    const row = page.getByRole("row", { name: /^walk-.* ready / });
    await row.getByText("gpu, region=eu").waitFor();
    await inspect("nodes");
    await row.getByRole("button", { name: "Drain" }).click();
    await inspect("nodes, asking");
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  });
  await step("calls: live, filtered by the address bar, and one as a waterfall", async () => {
    await at("/calls");
    const rows = page.getByRole("table").locator(".row.opens");
    await rows.first().waitFor();
    const newest = () => rows.first().innerText();
    const before = await newest();
    await page.waitForFunction((old) => document.querySelector(".row.opens")?.innerText !== old, before, { timeout: 20_000 });
    await button(/Pause/).click();
    const held = await newest();
    await page.waitForTimeout(1500);
    assert.equal(await newest(), held);
    await button("Failed").click();
    await page.waitForURL(/status=failed/);
    await rows.first().waitFor();
    assert.ok(!/\bok\b/.test(await rows.first().innerText()));
    await rows.first().getByRole("button").click();
    await page.getByRole("heading", { name: "Where the time went" }).waitFor();
    await page.reload(); // an address is a state
    await page.getByRole("heading", { name: "Where the time went" }).waitFor();
    await at(`/calls?status=ok&server=${given.tool.split(".")[0]}`);
    await rows.first().getByRole("button").click();
    await page.locator(".waterfall .bar").first().waitFor();
    await inspect("calls");
    const saved = page.waitForEvent("download");
    await button("Export").click();
    assert.equal((await saved).suggestedFilename(), "calls.ndjson");
    await page.keyboard.press("Escape");
    await page.locator(".drawer").waitFor({ state: "detached" });
  });
  await step("tools: search, form, JSON, command, Python, curl, and a call", async () => {
    const [server, tool] = given.tool.split(".");
    await at("/tools");
    await page.getByRole("searchbox").fill(tool);
    await page.getByRole("link", { name: given.tool, exact: true }).waitFor();
    await inspect("tools");
    await page.getByRole("link", { name: given.tool, exact: true }).click();
    for (const [name, value] of Object.entries(given.arguments)) await page.getByLabel(name, { exact: false }).first().fill(String(value));
    await page.getByRole("tab", { name: "JSON" }).click();
    const written = JSON.parse(await page.getByLabel("Arguments as JSON").inputValue());
    for (const [name, value] of Object.entries(given.arguments)) assert.equal(written[name], value);
    for (const [tab, part] of [["Command", `toolway call ${given.tool}`], ["Python", "hub.call_tool"], ["curl", "curl http"]]) {
      await page.getByRole("tab", { name: tab }).click();
      await page.locator(".playground pre", { hasText: part }).waitFor();
    }
    await page.getByRole("tab", { name: "Form" }).click();
    await page.locator(".playground > .actions").getByRole("button", { name: "Call" }).click();
    await page.locator(".answer", { hasText: "answered" }).waitFor();
    await inspect("playground");
    assert.ok(server);
  });
  if (given.hostile) {
    await step("a hostile server is only words", async () => {
      await at(`/tools/${given.hostile}/speak`);
      await page.locator(".playground > .actions").getByRole("button", { name: "Call" }).click();
      await page.locator(".answer").waitFor();
      await inspect("hostile answer");
      await at(`/servers/${given.hostile}?tab=log`);
      await page.locator("pre.log", { hasText: "onerror" }).waitFor();
      await inspect("hostile log");
      assert.equal(await page.locator("img[src=x], svg[onload], iframe").count(), 0);
    });
  }
  await step("a breaker is tripped and reset", async () => {
    const name = given.tool.split(".")[0];
    await at(`/servers/${name}?tab=resilience`);
    await button("Trip breaker").click();
    await page.getByRole("dialog").getByRole("button", { name: "Trip" }).click();
    await button("Reset breaker").waitFor();
    await at("/reliability");
    const card = page.getByRole("region", { name: `Breaker of ${name}`, exact: true });
    await card.getByText(/left alone/).waitFor();
    await inspect("reliability");
    await card.getByRole("button", { name: "Reset" }).click();
    await card.getByText(/left alone/).waitFor({ state: "detached" });
  });
  await step("groups, keys, events", async () => {
    await at("/groups");
    for (const client of ["Cursor", "VS Code", "Codex"]) await page.getByRole("tab", { name: client }).click();
    await inspect("groups");
    await at("/keys");
    await page.getByLabel("Whose key").fill("walker");
    await button(/Make a key/, false).click();
    const token = await page.locator("pre", { hasText: /^tw_/ }).innerText();
    await inspect("keys");
    await button("I have it").click();
    assert.ok(!(await page.content()).includes(token));
    await page.getByRole("row", { name: /walker/ }).getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("row", { name: /walker/ }).waitFor({ state: "detached" });
    await at("/events");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    await inspect("events");
  });
  await step("the configuration is rolled back", async () => {
    await at("/config");
    await button(/^1 until/, false).click();
    await page.locator("pre.diff").waitFor();
    await inspect("config");
    const versions = await page.locator(".versions li").count();
    await button("Roll back").click();
    await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
    await page.waitForFunction((old) => document.querySelectorAll(".versions li").length > old, versions);
  });
  await step("the doctor says why", async () => {
    await at("/doctor");
    await page.getByRole("combobox").selectOption(given.failing);
    await button("Examine").click();
    await page.locator(".checks").waitFor({ timeout: 90_000 });
    await inspect("doctor");
  });
  await step("what the keys do", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await inspect("keys of the keyboard");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "detached" });
  });
  await step("anything is found by a few letters", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    await page.keyboard.press("Control+k");
    await page.keyboard.type(given.tool);
    await page.getByRole("option", { name: new RegExp(given.tool.replace(".", "\\.")) }).first().waitFor();
    await inspect("find");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/tools\//);
  });
  if (given.many) {
    await step("many servers and tools stay fluid", async () => {
      for (const path of ["/servers", "/tools"]) {
        const begun = Date.now();
        await at(path);
        await page.getByRole("table").locator(".row.opens").first().waitFor();
        figures[`open_${path.slice(1)}_ms`] = Date.now() - begun;
        const before = await worked();
        const seen = await page.evaluate(fluid, path.slice(1));
        figures[`frame_${path.slice(1)}_cpu_ms`] = Number((((await worked()) - before) / seen[`frames_${path.slice(1)}`]).toFixed(1));
        Object.assign(figures, seen);
      }
      const begun = Date.now();
      await page.getByRole("searchbox").fill("find_thing_17");
      await page.waitForFunction(() => /find_thing_17/.test(document.querySelector(".row.opens")?.innerText ?? ""));
      figures.search_ms = Date.now() - begun;
      for (const list of ["servers", "tools"]) assert.ok(figures[`frame_${list}_cpu_ms`] < 33, `a picture of ${list} costs too much`);
      assert.ok(figures.rows_tools < 120, `${figures.rows_tools} rows are made`);
    });
  }
  await step("as a phone shows it", async () => {
    await page.setViewportSize({ width: 375, height: 812 });
    for (const path of ["/", "/servers", `/servers/${given.failing}`, "/calls", "/tools", `/tools/${given.tool.replace(".", "/")}`, "/reliability", "/groups", "/keys", "/config", "/doctor", "/events", ...(given.cluster ? ["/nodes"] : [])]) {
      await at(path);
      await inspect(`phone ${path}`);
    }
  });
  assert.deepEqual(elsewhere, [], "something was asked of another address");
  assert.equal(complaints.length + faults.length, 0, "the page has faults");
} catch (error) {
  await page.screenshot({ path: `${process.env.TMPDIR ?? "/tmp"}/toolway-walk.png` }).catch(() => {});
  console.error(`at ${page.url()}: ${error.message}`);
  for (const each of [...complaints, ...faults]) console.error(`  ${each}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
console.log(JSON.stringify(figures));

/** Scroll from top to bottom, and see how long each picture took. */
async function fluid(name) {
  const box = document.querySelector(".grid");
  const times = [];
  let last = performance.now();
  const end = Math.min(box.scrollHeight - box.clientHeight, 60_000);
  for (let place = 0; place <= end; place += Math.max(200, end / 90)) {
    box.scrollTop = place;
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return { [`frames_${name}`]: times.length, [`frame_${name}_p95_ms`]: Math.round(times[Math.floor(times.length * 0.95)]), [`rows_${name}`]: document.querySelectorAll(".row.opens").length };
}
