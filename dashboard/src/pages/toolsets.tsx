import { useAdmin } from "../live";
import { Copyable, ErrorBox, Tabs } from "../components/common";
import { ToolsetEditor } from "../components/toolset_editor";
import { Link, PREFIX, path, setQuery, useRoute } from "../route";
import type { Endpoints } from "../types";
import { TOKENS, formatCount, estimateTokens } from "../format";

const TOKEN = "Bearer YOUR-KEY";
const CLIENTS: [id: string, title: string, format: (name: string, url: string) => string][] = [
  ["claude-code", "Claude Code", (name, url) => `claude mcp add --transport http ${name} ${url} --header "Authorization: ${TOKEN}"`],
  ["cursor", "Cursor", (name, url) => json({ mcpServers: { [name]: { url, headers: { Authorization: TOKEN } } } })],
  ["vscode", "VS Code", (name, url) => json({ servers: { [name]: { type: "http", url, headers: { Authorization: TOKEN } } } })],
  ["codex", "Codex", (name, url) => `[mcp_servers.${name}]\nurl = "${url}"\nhttp_headers = { Authorization = "${TOKEN}" }`],
  ["generic", "Other clients", (name, url) => json({ mcpServers: { [name]: { type: "http", url, headers: { Authorization: TOKEN } } } })],
];
const INSTRUCTIONS: Record<string, string> = {
  "claude-code": "Run:", cursor: "Add to ~/.cursor/mcp.json:", vscode: "Add to .vscode/mcp.json:", codex: "Add to ~/.codex/config.toml:",
  generic: "Add to the config file of the client:",
};

const json = (value: unknown) => JSON.stringify(value, null, 2);

export function Toolsets() {
  const { data, error, reload } = useAdmin<Endpoints>("toolsets");
  const { query } = useRoute();
  const client = query.get("client") ?? "claude-code";
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const [, , format] = CLIENTS.find(([id]) => id === client) ?? CLIENTS[0]!;
  const selected = query.get("at") ?? "";
  const edited = data.toolsets.find((each) => each.name === selected) ?? null;
  const url = `${location.origin}${PREFIX}/mcp${selected ? `/${selected}` : ""}`;
  const name = selected ? `toolway-${selected.replace("/", "-")}` : "toolway";
  return (
    <div className="page">
      <h1>Toolsets and endpoints</h1>
      <p className="prose">A client connects to one endpoint and sees its tools: from all servers, one toolset, or one server. You can limit API keys to some endpoints.</p>
      <div className="columns">
        <button type="button" className="card endpoint" aria-pressed={selected === ""} onClick={() => setQuery({ at: "" })}>
          <strong>All servers</strong><code>/mcp</code><span>{data.all.tools} tools</span>
        </button>
        <button type="button" className="card endpoint" aria-pressed={selected === "search"} onClick={() => setQuery({ at: "search" })}>
          <strong>All servers, by search</strong><code>/mcp/search</code><span>4 tools that find and call all {data.all.tools}</span>
        </button>
        {data.toolsets.map((toolset) => (
          <button key={toolset.name} type="button" className="card endpoint" aria-pressed={selected === toolset.name} onClick={() => setQuery({ at: toolset.name })}>
            <strong>{toolset.name}</strong><code>{toolset.path}</code>
            <span>{toolset.tools} tools of {toolset.servers.length} servers, ≈ {formatCount(estimateTokens(toolset.size))} {TOKENS}</span>
            <small className="muted">{toolset.patterns.join(" ")}</small>
          </button>
        ))}
      </div>
      {!data.toolsets.length && <p className="muted">No toolsets yet. A toolset gives a selection of tools its own URL.</p>}
      <ToolsetEditor key={`${edited?.name} ${edited?.patterns.join()}`} toolset={edited} done={(at) => { reload(); setQuery({ at }); }} />
      <label className="inline">
        One server{" "}
        <select value={selected.startsWith("server/") ? selected : ""} onChange={(event) => setQuery({ at: event.target.value })}>
          <option value="">–</option>
          {data.servers.map((server) => <option key={server} value={`server/${server}`}>{server}</option>)}
        </select>
      </label>
      <section className="card">
        <h2>Connect a client to {selected || "all servers"}</h2>
        <Tabs label="Client" tabs={CLIENTS.map(([id, title]) => [id, title])} selected={client} onSelect={(id) => setQuery({ client: id })} />
        <p>{INSTRUCTIONS[client]}</p>
        <Copyable block text={format(name, url)} />
        <p className="muted">
          Create an API key for it under <Link to={path("keys")}>Keys</Link>, or configure it in a terminal with the local token:{" "}
          <code>toolway connect {client} --print{selected === "search" ? " --search" : selected && ` --toolset ${selected}`}</code>
        </p>
      </section>
    </div>
  );
}
