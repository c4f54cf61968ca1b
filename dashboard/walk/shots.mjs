// Screenshots of every page: light, dark and on a narrow screen.
//   node shots.mjs LINK FOLDER
import { mkdirSync } from "node:fs";
import { launch, openDashboard } from "./browser.mjs";

const [link, folder] = process.argv.slice(2);
const base = new URL("/dashboard", link).href;
mkdirSync(folder, { recursive: true });

const browser = await launch();
const { page, pageErrors } = await openDashboard(browser, link, { deviceScaleFactor: 1 });
const openFirstCall = async (path) => {
  await page.goto(base + path);
  await page.getByRole("table", { name: "Calls" }).locator(".row.opens").first().waitFor();
  await page.locator(".row.opens").first().getByRole("button").click();
  await page.getByRole("heading", { name: "Timing" }).waitFor();
};
const PAGES = {
  home: async () => page.goto(`${base}/`),
  servers: async () => page.goto(`${base}/servers`),
  server: async () => page.goto(`${base}/servers/crm`),
  calls: async () => openFirstCall("/calls?retried=1"),
  tools: async () => page.goto(`${base}/tools`),
  playground: async () => {
    await page.goto(`${base}/tools/pictures/sunset`);
    await page.getByRole("button", { name: "Call", exact: true }).last().click();
    await page.locator(".result img").waitFor();
  },
  reliability: async () => {
    await page.goto(`${base}/servers/pictures`);
    await page.getByRole("button", { name: "Trip breaker" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Trip" }).click();
    await page.getByRole("button", { name: "Reset breaker" }).waitFor();
    await page.goto(`${base}/reliability`);
  },
  usage: async () => page.goto(`${base}/usage`),
  alerts: async () => page.goto(`${base}/alerts`),
  search: async () => page.goto(`${base}/search?q=where%20is%20my%20order`),
  add: async () => {
    await page.goto(`${base}/add`);
    await page.getByLabel("Name", { exact: false }).first().fill("docs");
    await page.getByLabel("Address", { exact: false }).last().fill("https://mcp.example.com/mcp");
  },
  toolsets: async () => page.goto(`${base}/toolsets?at=reading`),
  "toolset-editor": async () => {
    await page.goto(`${base}/toolsets`);
    const form = page.getByRole("region", { name: "New toolset" });
    await form.getByLabel("Name", { exact: false }).fill("support");
    await form.getByRole("textbox", { name: /^Tools/ }).fill("crm.*\n!*.delete_*");
    await form.getByRole("button", { name: "Review and save" }).click();
    await page.getByRole("dialog").locator(".diff .added").first().waitFor();
  },
  keys: async () => page.goto(`${base}/keys`),
  config: async () => page.goto(`${base}/config?version=1`),
  "config-editor": async () => {
    await page.goto(`${base}/config`);
    await page.getByRole("button", { name: "Edit" }).click();
    const box = page.getByRole("textbox", { name: "Text of the file" });
    const file = JSON.parse(await box.inputValue());
    file.mcpServers.docs = { url: "https://mcp.example.com/mcp" };
    await box.fill(JSON.stringify(file, null, 2));
    await page.getByRole("button", { name: "Review and save" }).click();
    await page.getByRole("dialog").locator(".diff .added").first().waitFor();
  },
  doctor: async () => {
    await page.goto(`${base}/doctor`);
    await page.getByRole("combobox").selectOption("crm");
    await page.getByRole("button", { name: "Run doctor" }).click();
    await page.locator(".checks").waitFor({ timeout: 60_000 });
  },
  events: async () => page.goto(`${base}/events`),
};
const VARIANTS = {
  light: { colorScheme: "light", width: 1360, height: 860 },
  dark: { colorScheme: "dark", width: 1360, height: 860 },
  phone: { colorScheme: "light", width: 375, height: 812 },
};
const only = process.argv[4]?.split(",");
for (const [name, visit] of Object.entries(PAGES)) {
  if (only && !only.includes(name)) continue;
  for (const [variant, { colorScheme, width, height }] of Object.entries(VARIANTS)) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height });
    if (variant === "light") await visit().catch((error) => pageErrors.push(`${name}: ${error.message}`));
    await page.waitForTimeout(500);
    await page.screenshot({ path: `${folder}/${name}-${variant}.png` });
  }
}
await page.setViewportSize({ width: 1360, height: 860 });
await page.goto(`${base}/`);
await page.keyboard.press("Control+k");
await page.keyboard.type("ord");
await page.waitForTimeout(400);
await page.screenshot({ path: `${folder}/find-light.png` });
await browser.close();
for (const each of pageErrors) console.error(each);
process.exit(pageErrors.length ? 1 : 0);
