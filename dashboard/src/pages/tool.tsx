import { useState } from "react";
import { type Failure, post } from "../api";
import { useAsked } from "../live";
import { Answer } from "../parts/answer";
import { Copyable, Json, Mark, Problem, Tabs, commandOf } from "../parts/bits";
import { Form, filled } from "../parts/form";
import { Link, path } from "../route";
import type { Result, WholeTool } from "../types";
import { many, tokens } from "../words";

type Arguments = Record<string, unknown>;
const TABS: [string, string][] = [["form", "Form"], ["json", "JSON"], ["cli", "Command"], ["python", "Python"], ["curl", "curl"]];

export function ToolPage({ server, tool }: { server: string; tool: string }) {
  const { data, error } = useAsked<WholeTool>(`tools/${server}/${encodeURIComponent(tool)}`);
  if (error) return <Problem of={error} />;
  if (!data) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <div className="bar">
        <h1><Link to={path("servers", server)}>{server}</Link>.{tool}</h1>
        {data.destructive ? <Mark tone="warn">destructive</Mark> : data.read_only ? <Mark tone="good">reads only</Mark> : <Mark tone="idle">does not say whether it changes anything</Mark>}
        <span className="muted">≈ {many(tokens(data.size))} tokens · models call it <code>{data.model_name}</code></span>
      </div>
      {data.title && data.title !== tool && <p><strong>{data.title}</strong></p>}
      <p className="prose">{data.description}</p>
      <Playground of={data} />
      <details className="card"><summary>Definition</summary><Json of={data.raw} /></details>
    </div>
  );
}

function Playground({ of }: { of: WholeTool }) {
  const [tab, setTab] = useState("form");
  const [args, setArgs] = useState<Arguments>(() => filled(of.raw.inputSchema));
  const [text, setText] = useState<string | null>(null); // JSON that is being written
  const [answer, setAnswer] = useState<Result | null>(null);
  const [error, setError] = useState<Failure | null>(null);
  const [stop, setStop] = useState<AbortController | null>(null);
  const wrong = text === null ? "" : problemOf(text);
  const write = (next: string) => {
    setText(next);
    if (!problemOf(next)) setArgs(JSON.parse(next) as Arguments);
  };
  const run = () => {
    const abort = new AbortController();
    setStop(abort);
    setError(null);
    setAnswer(null);
    post<Result>("call", { server: of.server, tool: of.tool, arguments: args }, abort.signal)
      .then(setAnswer, (failed: Failure) => !abort.signal.aborted && setError(failed))
      .finally(() => setStop(null));
  };
  return (
    <section className="card playground" aria-label="Playground">
      <Tabs label="Ways to call it" tabs={TABS} chosen={tab} choose={(id) => { setTab(id); setText(null); }} />
      {tab === "form" && <Form schema={of.raw.inputSchema ?? {}} value={args} change={setArgs} run={run} />}
      {tab === "json" && (
        <>
          <textarea aria-label="Arguments as JSON" spellCheck={false} rows={10} value={text ?? JSON.stringify(args, null, 2)} onChange={(event) => write(event.target.value)} aria-invalid={wrong !== ""} />
          {wrong && <p className="bad" role="alert">{wrong}</p>}
        </>
      )}
      {tab === "cli" && <Copyable block text={commandOf(of.server, of.tool, args)} />}
      {tab === "python" && <Copyable block text={python(of, args)} />}
      {tab === "curl" && <Copyable block text={curl(of, args)} />}
      <div className="actions">
        <button type="button" className="primary" disabled={stop !== null || wrong !== ""} onClick={run}>{stop ? "Running…" : "Call"}</button>
        {stop && <button type="button" onClick={() => stop.abort()}>Cancel</button>}
        {of.destructive && <span className="muted">This is a real call. The tool says that it may destroy something.</span>}
      </div>
      {error && <Problem of={error} />}
      {answer && <Answer of={answer} />}
    </section>
  );
}

function problemOf(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? "" : "The arguments are an object.";
  } catch (error) {
    return String((error as Error).message);
  }
}

/** A value as Python writes it. */
function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function python(of: WholeTool, args: Arguments): string {
  return [
    "from toolway import Hub",
    "",
    "async with Hub() as hub:",
    `    reply = await hub.call_tool(${JSON.stringify(`${of.server}.${of.tool}`)}, ${literal(args)})`,
    "    print(reply.text)",
  ].join("\n");
}

function curl(of: WholeTool, args: Arguments): string {
  const version = "2026-07-28";
  const meta = {
    "io.modelcontextprotocol/protocolVersion": version,
    "io.modelcontextprotocol/clientInfo": { name: "curl", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  const body = { jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: of.model_name, arguments: args, _meta: meta } };
  const fields = [
    "Authorization: Bearer $(toolway token)", "Content-Type: application/json", "Accept: application/json, text/event-stream",
    `MCP-Protocol-Version: ${version}`, "Mcp-Method: tools/call", `Mcp-Name: ${of.model_name}`,
  ];
  const data = JSON.stringify(body).replaceAll("'", `'\\''`);
  return [`curl ${location.origin}/mcp`, ...fields.map((each) => `  -H "${each}"`), `  -d '${data}'`].join(" \\\n");
}
