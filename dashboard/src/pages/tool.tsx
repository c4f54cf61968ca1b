import { useState } from "react";
import { type ApiError, post } from "../api";
import { refresh, useAdmin } from "../live";
import { ResultView } from "../components/result";
import { ConfirmDialog, Copyable, JsonView, Badge, ErrorBox, Tabs, cliCommand } from "../components/common";
import { Form, defaultArguments } from "../components/form";
import { SaveButton } from "../components/save_dialog";
import { Link, PREFIX, go, path } from "../route";
import type { Result, ServerDetail, ToolDetail } from "../types";
import { TOKENS, formatCount, estimateTokens } from "../format";

type Arguments = Record<string, unknown>;
const TABS: [string, string][] = [["form", "Form"], ["json", "JSON"], ["cli", "Command"], ["python", "Python"], ["curl", "curl"]];

export function ToolPage({ server, tool }: { server: string; tool: string }) {
  const { data, error } = useAdmin<ToolDetail>(`tools/${server}/${encodeURIComponent(tool)}`);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <div className="bar">
        <h1><Link to={path("servers", server)}>{server}</Link>.{tool}</h1>
        {data.destructive ? <Badge tone="warn">destructive</Badge> : data.read_only ? <Badge tone="good">read-only</Badge> : <Badge tone="idle">effect not declared</Badge>}
        <span className="muted">≈ {formatCount(estimateTokens(data.size))} {TOKENS} · name for models: <code>{data.model_name}</code></span>
      </div>
      {data.title && data.title !== tool && <p><strong>{data.title}</strong></p>}
      <p className="prose">{data.description}</p>
      <Playground tool={data} />
      <HideTool server={server} tool={tool} />
      <details className="card"><summary>Definition</summary><JsonView value={data.raw} /></details>
    </div>
  );
}

/** Button that adds the tool to the deny list of its server's entry in the config file. */
function HideTool({ server, tool }: { server: string; tool: string }) {
  const detail = useAdmin<ServerDetail>(`servers/${server}/detail`).data;
  if (!detail?.origins.length) return null; // its entry is not in the config file
  const denied = (detail.definition.denied_tools as string[] | undefined) ?? [];
  return (
    <section className="card" aria-label="Access">
      <h2>Access</h2>
      <p>Clients can't see or call a hidden tool. You can roll this back on the Config page.</p>
      <div className="actions">
        <SaveButton danger title={`Hide ${server}.${tool}?`} change={() => ({ method: "post", path: `config/servers/${server}`, body: { deniedTools: [...denied, tool] } })} done={async () => { go(`${path("servers", server)}?tab=tools`); await refresh(); }}>Hide this tool</SaveButton>
      </div>
    </section>
  );
}

function Playground({ tool }: { tool: ToolDetail }) {
  const [tab, setTab] = useState("form");
  const [args, setArgs] = useState<Arguments>(() => defaultArguments(tool.raw.inputSchema));
  const [text, setText] = useState<string | null>(null); // JSON while it is edited
  const [result, setResult] = useState<Result | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [stop, setStop] = useState<AbortController | null>(null);
  const invalid = text === null ? "" : argumentsError(text);
  const write = (next: string) => {
    setText(next);
    if (!argumentsError(next)) setArgs(JSON.parse(next) as Arguments);
  };
  const run = () => {
    const abort = new AbortController();
    setStop(abort);
    setError(null);
    setResult(null);
    post<Result>("call", { server: tool.server, tool: tool.tool, arguments: args }, abort.signal)
      .then(setResult, (failed: ApiError) => !abort.signal.aborted && setError(failed))
      .finally(() => setStop(null));
  };
  return (
    <section className="card playground" aria-label="Playground">
      <Tabs label="Form of the call" tabs={TABS} selected={tab} onSelect={(id) => { setTab(id); setText(null); }} />
      {tab === "form" && <Form schema={tool.raw.inputSchema ?? {}} value={args} change={setArgs} run={tool.destructive ? () => {} : run} />}
      {tab === "json" && (
        <>
          <textarea aria-label="Arguments as JSON" spellCheck={false} rows={10} value={text ?? JSON.stringify(args, null, 2)} onChange={(event) => write(event.target.value)} aria-invalid={invalid !== ""} />
          {invalid && <p className="bad" role="alert">{invalid}</p>}
        </>
      )}
      {tab === "cli" && <Copyable block text={cliCommand(tool.server, tool.tool, args)} />}
      {tab === "python" && <Copyable block text={python(tool, args)} />}
      {tab === "curl" && <Copyable block text={curl(tool, args)} />}
      <div className="actions">
        {tool.destructive ? (
          <ConfirmDialog title={`Call ${tool.server}.${tool.tool}?`} text="This is a real call, and the server marks the tool as destructive: it may delete or overwrite something." confirmLabel="Call" typed={tool.tool} action={async () => run()}>
            {(open) => <button type="button" className="danger" disabled={stop !== null || invalid !== ""} onClick={open}>{stop ? "Running…" : "Call"}</button>}
          </ConfirmDialog>
        ) : (
          <button type="button" className="primary" disabled={stop !== null || invalid !== ""} onClick={run}>{stop ? "Running…" : "Call"}</button>
        )}
        {stop && <button type="button" onClick={() => stop.abort()}>Cancel</button>}
      </div>
      {error && <ErrorBox error={error} />}
      {result && <ResultView result={result} />}
    </section>
  );
}

function argumentsError(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? "" : "The arguments must be an object.";
  } catch (error) {
    return String((error as Error).message);
  }
}

/** Return a value as a Python literal. */
function pythonLiteral(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pythonLiteral(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function python(tool: ToolDetail, args: Arguments): string {
  return [
    "from toolway import Hub",
    "",
    "async with Hub() as hub:",
    `    result = await hub.call_tool(${JSON.stringify(`${tool.server}.${tool.tool}`)}, ${pythonLiteral(args)})`,
    "    print(result.text)",
  ].join("\n");
}

function curl(tool: ToolDetail, args: Arguments): string {
  const version = "2026-07-28";
  const meta = {
    "io.modelcontextprotocol/protocolVersion": version,
    "io.modelcontextprotocol/clientInfo": { name: "curl", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  const body = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool.model_name, arguments: args, _meta: meta } };
  const fields = [
    "Authorization: Bearer $(toolway keys local-token)", "Content-Type: application/json", "Accept: application/json, text/event-stream",
    `MCP-Protocol-Version: ${version}`, "Mcp-Method: tools/call", `Mcp-Name: ${tool.model_name}`,
  ];
  const data = JSON.stringify(body).replaceAll("'", `'\\''`);
  return [`curl ${location.origin}${PREFIX}/mcp`, ...fields.map((each) => `  -H "${each}"`), `  -d '${data}'`].join(" \\\n");
}
