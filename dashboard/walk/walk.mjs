// Browser test of every dashboard page of a running gateway.
//   node walk.mjs '{"link": …, "failing": …, "reason": …, "tool": "server.tool", "canary": …, "hostile": …}'
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { launch, openDashboard } from "./browser.mjs";

const options = JSON.parse(process.argv[2]);
const base = new URL("/dashboard", options.link).href;
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const OLD_WORDS = ["What it says of itself", "not said", "Read it again", "Now in force", "Asleep or off", "Waiting for a person"];
const figures = {};
const faults = [];

const browser = await launch();
const { context, page, pageErrors } = await openDashboard(browser, options.link);
const foreignRequests = [];
page.on("request", (request) => {
  if (!request.url().startsWith(new URL(base).origin) && !request.url().startsWith("data:")) foreignRequests.push(request.url());
});
page.on("dialog", (dialog) => {
  faults.push(`a dialog opened: ${dialog.message()}`);
  void dialog.dismiss();
});

const at = (path) => page.goto(base + path);
const button = (name, exact = true) => page.getByRole("button", { name, exact });
const step = async (name, run) => {
  if (options.only && !new RegExp(options.only).test(name)) return;
  const started = Date.now();
  await run();
  console.log(`  ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
};

/** Check for serious accessibility faults in both themes, executed text of servers, visible secrets and overflow. */
async function inspect(name) {
  await page.waitForTimeout(150);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    // The debugger injects axe: the content security policy forbids a script element.
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const each of violations.filter((each) => ["serious", "critical"].includes(each.impact))) {
      faults.push(`${name}, ${colorScheme}: ${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  if (await page.evaluate(() => window.__owned !== undefined)) faults.push(`${name}: text of a server was executed`);
  const html = await page.content();
  if (options.canary && html.includes(options.canary)) faults.push(`${name}: a secret is visible`);
  const text = await page.locator("body").innerText();
  for (const word of OLD_WORDS) if (text.includes(word)) faults.push(`${name}: the word “${word}”`);
  const overflows = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth + 1);
  if (overflows) faults.push(`${name}: wider than the window`);
}

/** Check the diff that the dialog of a change shows, and save the change in the config file. */
async function save(title, part) {
  const dialog = page.getByRole("dialog", { name: title });
  await dialog.locator(".diff .added", { hasText: part }).first().waitFor();
  await inspect(title);
  await dialog.getByRole("button", { name: "Save in the config file" }).click();
  await dialog.waitFor({ state: "hidden" });
}

const cdp = await context.newCDPSession(page);
await cdp.send("Performance.enable", { timeDomain: "threadTicks" });

/** CPU milliseconds that the page has used so far, independent of the load of the machine. */
async function cpuTime() {
  const { metrics } = await cdp.send("Performance.getMetrics");
  return 1000 * metrics.find((each) => each.name === "TaskDuration").value;
}

try {
  await step("login leaves no secret in the address bar", async () => {
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
    figures.first_paint_cpu_ms = Math.round(await cpuTime()); // wall time depends on the load of the machine
    assert.ok(figures.first_paint_cpu_ms < 1000, `first paint after ${figures.first_paint_cpu_ms} ms of CPU time`);
  });
  await step("cause of a failing server in two clicks", async () => {
    await inspect("home");
    await page.locator("nav").getByRole("link", { name: /Servers/ }).click(); // first click
    await page.getByRole("link", { name: options.failing, exact: true }).click(); // second click
    await page.getByRole("region", { name: "Why" }).getByText(options.reason).first().waitFor();
    const causes = await page.locator("main").getByText(options.reason).filter({ visible: true }).count();
    assert.ok(causes <= 4, `the cause is shown ${causes} times`);
    await inspect("server");
  });
  await step("cause of a failing server if it changes faster than the gateway responds", async () => {
    let restarts = 0;
    await page.route("**/admin/overview", async (route) => {
      const response = await route.fetch();
      const overview = await response.json();
      overview.servers.find((each) => each.server === options.failing).restarts = ++restarts;
      await route.fulfill({ response, json: overview });
    });
    await page.route(`**/admin/servers/${options.failing}/detail`, async (route) => {
      await new Promise((done) => setTimeout(done, 6000)); // longer than the 5 s between two overviews
      await route.continue();
    });
    await at(`/servers/${options.failing}`);
    await page.getByRole("region", { name: "Why" }).getByText(options.reason).first().waitFor();
    await page.unrouteAll({ behavior: "ignoreErrors" });
  });
  await step("servers: filter, sort, every tab", async () => {
    await at("/servers");
    await page.getByRole("searchbox").fill(options.failing);
    await page.waitForURL(/q=/);
    await page.locator(".row.opens", { hasText: options.failing }).waitFor();
    await at("/servers?sort=-calls");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    await inspect("servers");
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.waitForURL(/servers\/[^?]+$/);
    await at(`/servers/${options.tool.split(".")[0]}`);
    for (const tab of ["Calls", "Tools", "Log", "Config", "Resilience"]) {
      await page.getByRole("tab", { name: tab }).click();
      await inspect(`server, ${tab}`);
    }
  });
  await step(options.cluster ? "nodes and owners of servers" : "no nodes without a cluster", async () => {
    await at("/servers");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    const owner = page.getByRole("columnheader", { name: "Owner" });
    const nodes = page.locator("nav").getByRole("link", { name: "Nodes" });
    assert.deepEqual([await owner.count(), await nodes.count()], options.cluster ? [1, 1] : [0, 0]);
    if (!options.cluster) return;
    await page.getByRole("link", { name: /^walk-/ }).first().click();
    const row = page.getByRole("row", { name: /^walk-.* ready / });
    await row.getByText("gpu, region=eu").waitFor();
    await inspect("nodes");
    await row.getByRole("button", { name: "Drain" }).click();
    await inspect("nodes, confirmation");
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  });
  await step("calls: live, filters in the URL, waterfall of one call", async () => {
    await at("/calls");
    const rows = page.getByRole("table").locator(".row.opens");
    await rows.first().waitFor();
    const newest = () => rows.first().innerText();
    const before = await newest();
    await page.waitForFunction((old) => document.querySelector(".row.opens")?.innerText !== old, before, { timeout: 20_000 });
    await button(/Pause/).click();
    const paused = await newest();
    await page.waitForTimeout(1500);
    assert.equal(await newest(), paused);
    await button("Failed").click();
    await page.waitForURL(/status=failed/);
    await rows.first().waitFor();
    assert.ok(!/\bok\b/.test(await rows.first().innerText()));
    await rows.first().getByRole("button").click();
    await page.getByRole("heading", { name: "Timing" }).waitFor();
    await page.reload(); // the URL holds the state
    await page.getByRole("heading", { name: "Timing" }).waitFor();
    await at(`/calls?status=ok&server=${options.tool.split(".")[0]}`);
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
    const [server, tool] = options.tool.split(".");
    await at("/tools");
    await page.getByRole("searchbox").fill(tool);
    await page.getByRole("link", { name: options.tool, exact: true }).waitFor();
    await inspect("tools");
    await page.getByRole("link", { name: options.tool, exact: true }).click();
    for (const [name, value] of Object.entries(options.arguments)) await page.getByLabel(name, { exact: false }).first().fill(String(value));
    await page.getByRole("tab", { name: "JSON" }).click();
    const edited = JSON.parse(await page.getByLabel("Arguments as JSON").inputValue());
    for (const [name, value] of Object.entries(options.arguments)) assert.equal(edited[name], value);
    for (const [tab, part] of [["Command", `toolway call ${options.tool}`], ["Python", "hub.call_tool"], ["curl", "curl http"]]) {
      await page.getByRole("tab", { name: tab }).click();
      await page.locator(".playground pre", { hasText: part }).waitFor();
    }
    await page.getByRole("tab", { name: "Form" }).click();
    await page.locator(".playground > .actions").getByRole("button", { name: "Call" }).click();
    await page.locator(".result", { hasText: "success" }).waitFor();
    await inspect("playground");
    assert.ok(server);
  });
  await step("a destructive call needs the typed name", async () => {
    await at("/tools/shop/cancel_order");
    await page.locator(".playground > .actions").getByRole("button", { name: "Call" }).click();
    const dialog = page.getByRole("dialog", { name: "Call shop.cancel_order?" });
    assert.ok(await dialog.getByRole("button", { name: "Call" }).isDisabled());
    await inspect("destructive call");
    await dialog.getByLabel("Type cancel_order to confirm").fill("cancel_order");
    await dialog.getByRole("button", { name: "Call" }).click();
    await page.locator(".result").waitFor();
  });
  await step("alerts, unknown page", async () => {
    await at("/alerts");
    await page.getByRole("heading", { name: "Runs that wait for an answer" }).waitFor();
    if (options.agent) await page.getByRole("link", { name: options.agent, exact: true }).waitFor();
    await inspect("alerts");
    await at("/nothing");
    await page.getByRole("heading", { name: "No page “nothing”" }).waitFor();
    await inspect("unknown page");
  });
  if (options.hostile) {
    await step("text of a hostile server is not executed", async () => {
      await at(`/tools/${options.hostile}/speak`);
      await page.locator(".playground > .actions").getByRole("button", { name: "Call" }).click();
      await page.locator(".result").waitFor();
      await inspect("hostile result");
      await at(`/servers/${options.hostile}?tab=log`);
      const log = page.getByLabel("stderr");
      const before = await log.innerText();
      await page.waitForFunction((old) => document.querySelector("pre.log").innerText !== old, before); // it follows the server
      await button("Pause").click();
      await button("Follow").waitFor();
      const paused = await log.innerText();
      await page.waitForTimeout(2500);
      assert.equal(await log.innerText(), paused);
      await inspect("hostile log");
      assert.equal(await page.locator("img[src=x], svg[onload], iframe").count(), 0);
    });
  }
  await step("trip and reset a breaker", async () => {
    const name = options.tool.split(".")[0];
    await at(`/servers/${name}?tab=resilience`);
    await button("Trip breaker").click();
    await page.getByRole("dialog").getByRole("button", { name: "Trip" }).click();
    await button("Reset breaker").waitFor();
    await at("/reliability");
    const card = page.getByRole("region", { name: `Breaker of ${name}`, exact: true });
    await card.getByText(/no calls for/).waitFor();
    await page.getByRole("region", { name: "Servers that are down" }).getByRole("link", { name: options.failing, exact: true }).waitFor();
    await inspect("reliability");
    await card.getByRole("button", { name: "Reset" }).click();
    await card.getByText(/no calls for/).waitFor({ state: "detached" });
  });
  if (!options.cluster) {
    await step("answer a workflow run", async () => {
      const body = { server: "workflows", tool: "walk", arguments: {} };
      const run = await page.evaluate(async (call) => {
        const headers = { "content-type": "application/json", "x-toolway-page": localStorage.getItem("toolway-page") };
        const reply = await fetch("/admin/call", { method: "POST", headers, body: JSON.stringify(call) });
        return (await reply.json()).result.structuredContent.run;
      }, body);
      await at("/runs");
      await inspect("runs");
      await page.getByRole("link", { name: run, exact: true }).click();
      await button("Approve: Walk on?").click();
      const dialog = page.getByRole("dialog", { name: "Approve: Walk on?" });
      await dialog.getByText("The run continues with the next step.").waitFor();
      await inspect("run");
      await dialog.getByRole("button", { name: "Confirm" }).click();
      await page.locator("main .badge", { hasText: "done" }).first().waitFor();
      await inspect("ended run");
    });
  }
  if (options.agent) {
    await step("deny and approve calls of an agent", async () => {
      await at("/agents");
      await page.getByRole("row", { name: new RegExp(`${options.agent}.*asks`, "s") }).waitFor();
      await inspect("agents");
      await page.getByRole("link", { name: options.agent, exact: true }).click();
      const call = page.getByRole("region", { name: "Approval of shop.cancel_order" });
      await call.getByText('{"number":7}').waitFor();
      await call.getByText("effect: unsafe").waitFor();
      await inspect("agent that asks");
      await call.getByRole("button", { name: "Deny shop.cancel_order", exact: true }).click();
      const dialog = page.getByRole("dialog", { name: "Deny shop.cancel_order?" });
      await dialog.getByText("is not called").waitFor();
      await inspect("agent, denial");
      await dialog.getByRole("textbox").fill("not this one");
      await dialog.getByRole("button", { name: "Confirm" }).click();
      await call.getByText('{"number":8}').waitFor();
      await call.getByRole("button", { name: "Approve shop.cancel_order", exact: true }).click();
      await page.getByRole("dialog", { name: "Approve shop.cancel_order?" }).getByText("is called once").waitFor();
      await page.getByRole("dialog", { name: "Approve shop.cancel_order?" }).getByRole("button", { name: "Confirm" }).click();
      await page.locator("main .badge", { hasText: "done" }).first().waitFor();
      const conversation = page.getByRole("list", { name: "Conversation" });
      await conversation.getByText("One order is cancelled.").waitFor();
      assert.equal(await conversation.getByText("not this one").count(), 1);
      assert.equal(await conversation.getByText("executed: yes").count(), 2);
      await conversation.locator("details summary").first().click();
      await inspect("ended agent");
      assert.match(await page.locator("dl.tiles").innerText(), /cost[^]*\$0\.00[^]*of \$0\.50/);
      await page.getByRole("tab", { name: "Timeline" }).click();
      await page.getByRole("region", { name: "Steps" }).getByText("→ shop.cancel_order, → shop.cancel_order").waitFor();
      await inspect("agent, timeline");
      await page.getByRole("tab", { name: "Settings" }).click();
      await inspect("agent, settings");
    });
  }
  await step("toolsets, keys, events", async () => {
    await at("/toolsets");
    for (const client of ["Cursor", "VS Code", "Codex"]) await page.getByRole("tab", { name: client }).click();
    await inspect("toolsets");
    await at("/keys");
    await page.getByLabel("Name of the key").fill("walker");
    await button(/Create key/, false).click();
    const token = await page.locator("pre", { hasText: /^tw_/ }).innerText();
    await inspect("keys");
    await button("Close").click();
    assert.ok(!(await page.content()).includes(token));
    await page.getByRole("row", { name: /walker/ }).getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("row", { name: /walker/ }).waitFor({ state: "detached" });
    await at("/events");
    await page.getByRole("table").locator(".row.opens").first().waitFor();
    await inspect("events");
  });
  await step("roll back the configuration", async () => {
    await at("/config");
    await button(/^1 until/, false).click();
    await page.locator("pre.diff").waitFor();
    await inspect("config");
    const versions = await page.locator(".versions li").count();
    await button("Roll back").click();
    await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
    await page.waitForFunction((old) => document.querySelectorAll(".versions li").length > old, versions);
  });
  await step("edit a server in the file", async () => {
    await at("/servers/payments?tab=config");
    const form = page.getByRole("region", { name: "Edit" });
    await form.getByLabel("Timeout of a call").fill("soon");
    await form.getByRole("button", { name: "Review and save" }).click();
    await form.getByRole("alert").waitFor();
    assert.match(pageErrors.pop(), /422/); // of the wrong value
    await form.getByLabel("Timeout of a call").fill("45s");
    await form.getByRole("button", { name: "Review and save" }).click();
    await save("Change payments?", "45s");
    await page.getByRole("region", { name: "Origin" }).getByText('"45s"').waitFor();
    await inspect("edited server");
  });
  await step("add a server by its address", async () => {
    await at("/servers");
    await page.getByRole("link", { name: "Add server" }).click();
    await page.getByLabel("Name", { exact: false }).first().fill("added");
    await page.getByLabel("Address", { exact: false }).last().fill(options.added);
    await inspect("add a server");
    await button("Review and add").click();
    await save("Add added?", "/0");
    await page.waitForURL(/\/servers\/added$/);
    await page.locator("main .badge", { hasText: "ready" }).first().waitFor();
    await at("/config");
    await page.locator(".versions", { hasText: "added added" }).waitFor();
    await inspect("config after the addition");
  });
  await step("a command that is not listed is rejected, one that is listed waits for approval", async () => {
    await at("/add");
    await page.getByRole("tab", { name: "Command" }).click();
    await page.getByLabel("Name", { exact: false }).first().fill("local");
    await page.getByLabel("Command", { exact: false }).last().fill("rm");
    await page.getByLabel("Arguments", { exact: false }).fill("-rf\n/");
    await button("Review and add").click();
    await page.getByRole("alert").getByText("E-ADMISSION").waitFor();
    assert.match(pageErrors.pop(), /422/);
    await inspect("rejected command");
    await page.getByRole("tab", { name: "JSON" }).click();
    const [command, ...args] = options.listed;
    await page.getByLabel("Entry", { exact: false }).fill(JSON.stringify({ mcpServers: { local: { command, args } } }));
    await button("Review and add").click();
    await save("Add local?", "other");
    await page.getByRole("heading", { name: "local needs your review" }).waitFor();
    await page.getByText("toolway trust local").waitFor();
    await inspect("held server");
  });
  await step("add, change and remove a toolset", async () => {
    await at("/toolsets");
    const form = page.getByRole("region", { name: "New toolset" });
    await form.getByLabel("Name", { exact: false }).fill("walk");
    await form.getByRole("textbox", { name: /^Tools/ }).fill("weather.*\n!weather.stations");
    await form.getByRole("button", { name: "Review and save" }).click();
    await save("Save walk?", "!weather.stations");
    const edit = page.getByRole("region", { name: "Edit walk" });
    await edit.waitFor();
    await inspect("toolset");
    await edit.getByRole("textbox", { name: /^Tools/ }).fill("weather.forecast");
    await edit.getByRole("button", { name: "Review and save" }).click();
    await save("Save walk?", "weather.forecast");
    await page.getByRole("button", { name: /walk.*weather\.forecast/s }).waitFor();
    await edit.getByRole("button", { name: "Remove toolset" }).click();
    const dialog = page.getByRole("dialog", { name: "Remove walk?" });
    assert.ok(await dialog.getByRole("button", { name: "Save in the config file" }).isDisabled());
    await dialog.getByLabel("Type walk to confirm").fill("walk");
    await inspect("removal of a toolset");
    await dialog.getByRole("button", { name: "Save in the config file" }).click();
    await page.getByRole("region", { name: "New toolset" }).waitFor();
    await page.getByRole("button", { name: /^walk/ }).waitFor({ state: "detached" });
  });
  await step("edit the config file as text", async () => {
    await at("/config");
    await button("Edit").click();
    const box = page.getByRole("textbox", { name: "Text of the file" });
    const file = JSON.parse(await box.inputValue());
    const name = options.tool.split(".")[0];
    await box.fill(JSON.stringify({ ...file, mcpServers: { ...file.mcpServers, [name]: { command: "rm" } } }));
    await button("Review and save").click();
    await page.getByRole("alert").getByText("cannot be changed here").waitFor();
    assert.match(pageErrors.pop(), /4\d\d/);
    const entry = { ...file.mcpServers[name], timeout: "90s" };
    await box.fill(JSON.stringify({ ...file, mcpServers: { ...file.mcpServers, [name]: entry }, toolway: { ...file.toolway, toolsets: { typed: { tools: ["weather.*"] } } } }));
    await inspect("config editor");
    await button("Review and save").click();
    await save("Change the config file?", "90s");
    await button("Edit").waitFor();
    await page.locator("pre.file", { hasText: '"typed"' }).waitFor();
  });
  await step("hide a tool", async () => {
    await at("/tools/added/find_thing_1");
    await button("Hide this tool").click();
    await save("Hide added.find_thing_1?", "deniedTools");
    await page.waitForURL(/\/servers\/added\?tab=tools$/);
    await page.getByRole("link", { name: "find_thing_0", exact: true }).waitFor();
    await page.getByRole("link", { name: "find_thing_1", exact: true }).waitFor({ state: "detached" });
  });
  await step("usage over time by server, tool and key", async () => {
    await at("/usage");
    await page.getByRole("region", { name: "Latency" }).getByRole("link", { name: "weather", exact: true }).waitFor();
    await inspect("usage");
    await page.getByRole("tab", { name: "Tools" }).click();
    await page.getByRole("link", { name: options.tool, exact: true }).waitFor();
    await page.getByRole("tab", { name: "Keys" }).click();
    await page.getByRole("link", { name: "local", exact: true }).waitFor();
    await inspect("usage of keys");
  });
  await step("save, use and delete a filter with the keyboard", async () => {
    await at("/calls?status=failed&slow=0.1");
    await button("Save filter").focus();
    await page.keyboard.press("Enter");
    await page.keyboard.type("slow failures");
    await inspect("save a filter");
    await page.keyboard.press("Enter");
    await at("/calls");
    await button("slow failures").focus();
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/calls\?status=failed&slow=0\.1$/);
    await inspect("saved filter");
    await button("Delete the filter slow failures").click();
    await button("slow failures").waitFor({ state: "detached" });
  });
  await step("remove a server by its typed name, and roll it back", async () => {
    await at("/servers/payments");
    await button("Remove").click();
    const dialog = page.getByRole("dialog", { name: "Remove payments?" });
    assert.ok(await dialog.getByRole("button", { name: "Remove" }).isDisabled());
    await inspect("removal");
    await dialog.getByLabel("Type payments to confirm").fill("payments");
    await dialog.getByRole("button", { name: "Remove" }).click();
    await page.waitForURL(/\/servers$/);
    await page.getByRole("link", { name: "payments", exact: true }).waitFor({ state: "detached" });
    await at("/config");
    await button(/^1 until/, false).click();
    await page.locator("pre.diff .added", { hasText: "payments" }).first().waitFor();
    await button("Roll back").click();
    await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
    await at("/servers");
    await page.getByRole("link", { name: "payments", exact: true }).click(); // it is there after the nodes of a cluster have applied it
    await page.getByRole("heading", { name: "payments", exact: true }).waitFor();
  });
  await step("behind a proxy with a path prefix", async () => {
    const gateway = new URL(base);
    const seen = [];
    const proxy = http.createServer((request, response) => {
      seen.push(request.url);
      const target = { host: gateway.hostname, port: gateway.port, path: request.url.replace(/^\/tools\/toolway/, ""), method: request.method, headers: { ...request.headers, "x-forwarded-prefix": "/tools/toolway" } };
      const passed = http.request(target, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      passed.on("error", () => response.destroy());
      response.on("close", () => passed.destroy());
      request.pipe(passed);
    });
    await new Promise((done) => proxy.listen(options.proxy, "127.0.0.1", done));
    try {
      // Through a proxy, a gateway accepts no session of the token of its machine: an administrator's key opens this one.
      const path = await page.evaluate(async () => {
        const headers = { "x-toolway-page": localStorage.getItem("toolway-page"), "content-type": "application/json" };
        const body = JSON.stringify({ name: "behind a proxy", admin: true });
        const { token } = await (await fetch("/admin/keys", { method: "POST", headers, body })).json();
        const opened = await fetch("/admin/dashboard-links", { method: "POST", headers: { authorization: `Bearer ${token}` } });
        return (await opened.json()).path;
      });
      const prefixed = `http://127.0.0.1:${options.proxy}/tools/toolway`;
      const other = await context.newPage();
      await other.goto(prefixed + path);
      await other.getByText("live", { exact: true }).waitFor();
      await other.locator("nav").getByRole("link", { name: /Servers/ }).click();
      await other.waitForURL(`${prefixed}/dashboard/servers`);
      await other.reload();
      await other.getByRole("link", { name: options.failing, exact: true }).waitFor();
      assert.deepEqual(seen.filter((each) => !each.startsWith("/tools/toolway/")), []);
      await other.close();
    } finally {
      proxy.closeAllConnections();
      proxy.close();
    }
  });
  await step("doctor", async () => {
    await at("/doctor");
    await page.getByRole("region", { name: "Unhealthy servers" }).getByRole("button", { name: `Check ${options.failing}` }).waitFor();
    await inspect("doctor, before");
    await page.getByRole("combobox").selectOption(options.failing);
    await button("Run doctor").click();
    await page.locator(".checks").waitFor({ timeout: 90_000 });
    await inspect("doctor");
  });
  await step("keyboard shortcuts", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await inspect("keyboard shortcuts");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor({ state: "detached" });
  });
  await step("search dialog", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    await page.keyboard.press("Control+k");
    await page.keyboard.type(options.tool);
    await page.getByRole("option", { name: new RegExp(options.tool.replace(".", "\\.")) }).first().waitFor();
    await inspect("search dialog");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/tools\//);
  });
  await step("search dialog: a sentence finds a tool, no match is one line", async () => {
    await at("/");
    await page.locator(".sentence").waitFor();
    await page.keyboard.press("Control+k");
    await page.keyboard.type(options.sentence);
    await page.getByRole("option", { name: new RegExp(options.tool.replace(".", "\\.")) }).first().waitFor();
    await page.getByRole("combobox", { name: /^Search for/ }).fill("qqxzj");
    const none = page.getByRole("option", { name: "No match for “qqxzj”" });
    await none.waitFor();
    const { height } = await none.boundingBox();
    assert.ok(height < 40, `the line is ${height} pixels high`);
    await inspect("search dialog without a match");
  });
  await step("tool search", async () => {
    await at("/search");
    await page.getByRole("searchbox", { name: "Task" }).fill(options.tool.split(".")[1].replaceAll("_", " "));
    await page.getByRole("region", { name: "Found tools" }).getByRole("link", { name: options.tool, exact: true }).waitFor();
    await page.getByRole("cell", { name: "/mcp/search" }).waitFor();
    await page.getByRole("heading", { name: "Searches without a call" }).waitFor();
    await inspect("tool search");
  });
  if (options.many) {
    await step("many servers and tools scroll smoothly", async () => {
      for (const path of ["/servers", "/tools"]) {
        const started = Date.now();
        await at(path);
        await page.getByRole("table").locator(".row.opens").first().waitFor();
        figures[`open_${path.slice(1)}_ms`] = Date.now() - started;
        const before = await cpuTime();
        const measured = await page.evaluate(scrollThrough, path.slice(1));
        figures[`frame_${path.slice(1)}_cpu_ms`] = Number((((await cpuTime()) - before) / measured[`frames_${path.slice(1)}`]).toFixed(1));
        Object.assign(figures, measured);
      }
      const started = Date.now();
      await page.getByRole("searchbox").fill("find_thing_17");
      await page.waitForFunction(() => /find_thing_17/.test(document.querySelector(".row.opens")?.innerText ?? ""));
      figures.search_ms = Date.now() - started;
      for (const list of ["servers", "tools"]) assert.ok(figures[`frame_${list}_cpu_ms`] < 33, `a frame of ${list} takes too long`);
      assert.ok(figures.rows_tools < 120, `${figures.rows_tools} rows are rendered`);
    });
  }
  await step("narrow screen", async () => {
    await page.setViewportSize({ width: 375, height: 812 });
    await at("/");
    const bar = await page.locator("header.side").evaluate((element) => element.scrollWidth <= element.clientWidth);
    assert.ok(bar, "the bar of pages scrolls sideways");
    await page.getByRole("button", { name: /^Menu/ }).click();
    await inspect("phone menu");
    await page.getByRole("dialog", { name: "Menu" }).getByRole("link", { name: "Events" }).click();
    await page.waitForURL(/\/events$/);
    for (const path of ["/", "/servers", `/servers/${options.failing}`, "/calls", "/tools", `/tools/${options.tool.replace(".", "/")}`, "/search?q=sum", "/add", "/usage", "/reliability", "/runs", "/agents", "/alerts", "/toolsets", "/keys", "/config", "/doctor", "/events", ...(options.cluster ? ["/nodes"] : [])]) {
      await at(path);
      await inspect(`phone ${path}`);
    }
  });
  assert.deepEqual(foreignRequests, [], "a request went to another origin");
  assert.equal(pageErrors.length + faults.length, 0, "the page has faults");
} catch (error) {
  await page.screenshot({ path: `${process.env.TMPDIR ?? "/tmp"}/toolway-walk.png` }).catch(() => {});
  console.error(`at ${page.url()}: ${error.message}`);
  for (const each of [...pageErrors, ...faults]) console.error(`  ${each}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
console.log(JSON.stringify(figures));

/** Scroll from top to bottom and measure the time of each frame. */
async function scrollThrough(name) {
  const box = document.querySelector(".grid");
  const times = [];
  let last = performance.now();
  const end = Math.min(box.scrollHeight - box.clientHeight, 60_000);
  for (let position = 0; position <= end; position += Math.max(200, end / 90)) {
    box.scrollTop = position;
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return { [`frames_${name}`]: times.length, [`frame_${name}_p95_ms`]: Math.round(times[Math.floor(times.length * 0.95)]), [`rows_${name}`]: document.querySelectorAll(".row.opens").length };
}
