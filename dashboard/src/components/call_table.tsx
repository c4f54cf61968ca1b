// Table of calls, updated as they end. Its filters are part of the URL. A drawer shows the details of one call.

import { useEffect, useMemo, useRef, useState } from "react";
import { post } from "../api";
import { useAdmin, useLive } from "../live";
import { Link, path, setQuery, useRoute } from "../route";
import type { Call, Result, CallDetail } from "../types";
import { formatTime, formatSeconds } from "../format";
import { ActionButton, ConfirmDialog, CopyButton, Empty, Hint, JsonView, Badge, Outcome, ErrorBox, cliCommand } from "./common";
import { type Column, Table } from "./table";
import { ResultView } from "./result";
import { Waterfall } from "./waterfall";

const FIELDS = ["server", "tool", "principal", "status", "slow", "retried", "source", "q"];
const CHIPS: [field: string, value: string, title: string][] = [
  ["status", "failed", "Failed"],
  ["status", "unknown", "Unknown"],
  ["status", "waiting", "Waiting"],
  ["slow", "0.1", "≥ 100 ms"],
  ["slow", "1", "≥ 1 s"],
  ["retried", "1", "Retried"],
  ["source", "cache", "From cache"],
];

type Filter = Record<string, string>;

function matches(call: Call, filter: Filter): boolean {
  return (
    (!filter.server || call.server === filter.server) &&
    (!filter.tool || call.tool === filter.tool) &&
    (!filter.principal || call.principal === filter.principal) &&
    (!filter.status || matchesStatus(call, filter.status)) &&
    (!filter.slow || call.seconds >= Number(filter.slow)) &&
    (!filter.retried || call.attempts > 1) &&
    (!filter.source || call.source === filter.source) &&
    (!filter.q || `${call.server}.${call.tool} ${call.id} ${call.outcome} ${call.code} ${call.message}`.toLowerCase().includes(filter.q.toLowerCase()))
  );
}

function matchesStatus(call: Call, status: string): boolean {
  return status === "failed" ? call.failed : call.outcome === status || call.code === status;
}

export function CallTable({ fixed = {} }: { fixed?: Filter }) {
  const { query } = useRoute();
  const { calls, overflow } = useLive();
  const filter: Filter = { ...Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""])), ...fixed };
  const params = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
  const fetched = useAdmin<{ calls: Call[] }>(`calls?limit=500&${params}`);
  const [paused, setPaused] = useState<Call[] | null>(null);
  const filtered = useMemo(() => {
    const seen = new Set<string>();
    const all = [...calls.filter((call) => matches(call, Object.fromEntries(new URLSearchParams(params)))), ...(fetched.data?.calls ?? [])];
    return all.filter((call) => !seen.has(call.id) && seen.add(call.id)).sort((a, b) => b.at + b.seconds - a.at - a.seconds);
  }, [calls, fetched.data, params]);
  const rows = paused ?? filtered;
  const selected = query.get("call");
  useEffect(() => setPaused(null), [params]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "p" && !(event.target as HTMLElement).closest("input, textarea, select, dialog")) {
        setPaused((now) => (now ? null : filtered));
      }
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  });

  const columns: Column<Call>[] = [
    { id: "at", title: "Time", width: "84px", phone: true, show: (call) => <time dateTime={new Date(call.at * 1000).toISOString()}>{formatTime(call.at)}</time> },
    { id: "outcome", title: "Outcome", width: "minmax(110px, 160px)", phone: true, show: (call) => <Outcome of={call} /> },
    {
      id: "tool", title: "Tool", width: "minmax(140px, 2fr)", phone: true, show: (call) => (
        <button type="button" className="linklike cut" onClick={() => setQuery({ call: call.id }, "push")}>{call.server}.{call.tool}</button>
      ),
    },
    { id: "seconds", title: "Duration", width: "80px", right: true, phone: false, show: (call) => formatSeconds(call.seconds) },
    { id: "attempts", title: "Attempts", width: "66px", right: true, show: (call) => (call.attempts > 1 ? <Badge tone="warn">{call.attempts}</Badge> : call.attempts) },
    { id: "executed", title: "Executed", width: "86px", show: (call) => (call.executed === "unknown" ? <Badge tone="warn">unknown</Badge> : call.executed) },
    { id: "principal", title: "Caller", width: "minmax(70px, 120px)", show: (call) => <span className="cut">{call.principal}</span> },
    { id: "source", title: "Source", width: "70px", show: (call) => call.source || "server" },
    { id: "message", title: "Error", width: "minmax(80px, 2fr)", show: (call) => <span className="cut muted" title={call.message}>{call.message || call.code}</span> },
  ];
  return (
    <>
      <div className="bar">
        <input type="search" aria-label="Search calls" placeholder="Search ( / )" value={filter.q} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Only">
          {CHIPS.map(([field, value, title]) => (
            <button key={title} type="button" aria-pressed={filter[field] === value} onClick={() => setQuery({ [field]: filter[field] === value ? "" : value })}>{title}</button>
          ))}
          {["server", "tool", "principal"].filter((name) => filter[name] && !fixed[name]).map((name) => (
            <button key={name} type="button" aria-pressed="true" onClick={() => setQuery({ [name]: "" })}>{name}: {filter[name]} ×</button>
          ))}
        </div>
        <button type="button" aria-pressed={paused !== null} onClick={() => setPaused(paused ? null : filtered)}>
          {paused ? `Resume (${Math.max(0, filtered.length - paused.length)} new)` : "Pause"} <kbd>p</kbd>
        </button>
        <button type="button" disabled={!rows.length} onClick={() => download(rows)}>Export</button>
        {overflow > 0 && <span className="muted">{overflow} calls skipped: too many at once</span>}
      </div>
      <div className={selected ? "split" : "whole"}>
        <Table
          label="Calls"
          columns={selected ? columns.slice(0, 4) : columns}
          rows={rows}
          id={(call) => call.id}
          selected={selected}
          open={(call) => setQuery({ call: call.id }, "push")}
          empty={params ? <Empty title="No stored call matches." /> : <Empty title="No calls yet." command="toolway tools" />}
        />
        {selected && <Drawer id={selected} />}
      </div>
    </>
  );
}

/** Download the visible calls as a file with one JSON line per call. */
function download(calls: Call[]): void {
  const url = URL.createObjectURL(new Blob([calls.map((call) => `${JSON.stringify(call)}\n`).join("")], { type: "application/x-ndjson" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: "calls.ndjson" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function Drawer({ id }: { id: string }) {
  const { data: call, error } = useAdmin<CallDetail>(`calls/${encodeURIComponent(id)}`);
  const element = useRef<HTMLElement>(null);
  useEffect(() => element.current?.focus(), [id]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) setQuery({ call: "" });
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  return (
    <aside className="drawer" ref={element} tabIndex={-1} aria-label="Call details">
      <div className="bar">
        <h2>{call ? `${call.server}.${call.tool}` : id}</h2>
        <button type="button" className="quiet" onClick={() => setQuery({ call: "" })} aria-label="Close">✕</button>
      </div>
      {error && <ErrorBox error={error} />}
      {call && <CallDetails call={call} />}
    </aside>
  );
}

function CallDetails({ call }: { call: CallDetail }) {
  const [replayed, setReplayed] = useState<Result | null>(null);
  const args = call.arguments !== null && typeof call.arguments === "object" ? (call.arguments as Record<string, unknown>) : {};
  const replay = (body: object) => async () => setReplayed(await post<Result>(`calls/${encodeURIComponent(call.id)}/replay`, body));
  return (
    <>
      <p>
        <Outcome of={call} /> in {formatSeconds(call.seconds)}, {call.attempts === 1 ? "1 attempt" : `${call.attempts} attempts`}
        {" · "}executed: <strong>{call.executed}</strong> <span className="muted">({call.certainty})</span>
      </p>
      {call.message && (
        <div className="error">
          <strong>{call.message}</strong> <code>{call.code}</code>
          {call.detail && <p>{call.detail}</p>}
          <Hint text={call.hint} />
        </div>
      )}
      <h3>Timing</h3>
      <Waterfall call={call} />
      <h3>Arguments</h3>
      {call.arguments === null ? <p className="muted">Not stored: the call had none, or they were too large.</p> : <JsonView value={call.arguments} />}
      <dl className="facts">
        <dt>Time</dt><dd>{formatTime(call.at)}</dd>
        <dt>Caller</dt><dd><Link to={`/calls?principal=${encodeURIComponent(call.principal)}`}>{call.principal}</Link></dd>
        <dt>Server</dt><dd><Link to={path("servers", call.server)}>{call.server}</Link></dd>
        <dt>Effect</dt><dd>{call.effect || "–"}</dd>
        <dt>Id</dt><dd><code>{call.id}</code> <CopyButton text={call.id} /></dd>
        {call.trace && (<><dt>Trace</dt><dd><code>{call.trace}</code> <CopyButton text={call.trace} /></dd></>)}
      </dl>
      <div className="actions">
        <CopyButton text={cliCommand(call.server, call.tool, args)} label="Copy as command" />
        {call.method === "tools/call" && call.arguments !== null &&
          (call.effect === "unsafe" || call.effect === "" ? (
            <ConfirmDialog title="Repeat this call?" text={`${call.server}.${call.tool} may change something each time it is called.`} confirmLabel="Replay" action={replay({ confirm: true })}>
              {(open) => <button type="button" onClick={open}>Replay</button>}
            </ConfirmDialog>
          ) : (
            <ActionButton action={replay({})}>Replay</ActionButton>
          ))}
        <Link to={path("tools", call.server, call.tool)}>Open in playground</Link>
      </div>
      {replayed && <ResultView result={replayed} />}
    </>
  );
}
