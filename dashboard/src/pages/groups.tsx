import { useAsked } from "../live";
import { Copyable, Empty, Problem, Tabs } from "../parts/bits";
import { Link, path, setQuery, useRoute } from "../route";
import type { Endpoints } from "../types";
import { many, tokens } from "../words";

const TOKEN = "Bearer YOUR-KEY";
const CLIENTS: [id: string, title: string, make: (name: string, url: string) => string][] = [
  ["claude-code", "Claude Code", (name, url) => `claude mcp add --transport http ${name} ${url} --header "Authorization: ${TOKEN}"`],
  ["cursor", "Cursor", (name, url) => json({ mcpServers: { [name]: { url, headers: { Authorization: TOKEN } } } })],
  ["vscode", "VS Code", (name, url) => json({ servers: { [name]: { type: "http", url, headers: { Authorization: TOKEN } } } })],
  ["codex", "Codex", (name, url) => `[mcp_servers.${name}]\nurl = "${url}"\nhttp_headers = { Authorization = "${TOKEN}" }`],
  ["generic", "Others", (name, url) => json({ mcpServers: { [name]: { type: "http", url, headers: { Authorization: TOKEN } } } })],
];
const FILES: Record<string, string> = {
  "claude-code": "Run this:", cursor: "Into ~/.cursor/mcp.json:", vscode: "Into .vscode/mcp.json:", codex: "Into ~/.codex/config.toml:",
  generic: "Into the client’s file of servers:",
};

const json = (value: unknown) => JSON.stringify(value, null, 2);

export function Groups() {
  const { data, error } = useAsked<Endpoints>("groups");
  const { query } = useRoute();
  const client = query.get("client") ?? "claude-code";
  if (error) return <Problem of={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const [, , make] = CLIENTS.find(([id]) => id === client) ?? CLIENTS[0]!;
  const chosen = query.get("at") ?? "";
  const url = `${location.origin}/mcp${chosen ? `/${chosen}` : ""}`;
  const name = chosen ? `toolway-${chosen.replace("/", "-")}` : "toolway";
  return (
    <div className="page">
      <h1>Groups and endpoints</h1>
      <p className="prose">A client connects to one endpoint and sees what belongs to it: everything, one group, or one server. Keys may be held to some of them.</p>
      <div className="columns">
        <button type="button" className="card endpoint" aria-pressed={chosen === ""} onClick={() => setQuery({ at: "" })}>
          <strong>Everything</strong><code>/mcp</code><span>{data.all.tools} tools</span>
        </button>
        {data.groups.map((group) => (
          <button key={group.name} type="button" className="card endpoint" aria-pressed={chosen === group.name} onClick={() => setQuery({ at: group.name })}>
            <strong>{group.name}</strong><code>{group.path}</code>
            <span>{group.tools} tools of {group.servers.length} servers, ≈ {many(tokens(group.size))} tokens</span>
            <small className="muted">{group.patterns.join(" ")}</small>
          </button>
        ))}
      </div>
      {!data.groups.length && (
        <Empty title="There is no group yet. Write one into the file of servers; it is taken at once.">
          <Copyable block text={json({ toolway: { groups: { triage: { tools: ["github.*", "!github.delete_*"] } } } })} />
        </Empty>
      )}
      <label className="inline">
        One server{" "}
        <select value={chosen.startsWith("server/") ? chosen : ""} onChange={(event) => setQuery({ at: event.target.value })}>
          <option value="">–</option>
          {data.servers.map((server) => <option key={server} value={`server/${server}`}>{server}</option>)}
        </select>
      </label>
      <section className="card">
        <h2>Connect a client to {chosen || "everything"}</h2>
        <Tabs label="Client" tabs={CLIENTS.map(([id, title]) => [id, title])} chosen={client} choose={(id) => setQuery({ client: id })} />
        <p>{FILES[client]}</p>
        <Copyable block text={make(name, url)} />
        <p className="muted">
          Make a key for it under <Link to={path("keys")}>Keys</Link>, or let the terminal fill in this machine’s token:{" "}
          <code>toolway connect {client}{chosen && ` --group ${chosen}`}</code>
        </p>
      </section>
    </div>
  );
}
