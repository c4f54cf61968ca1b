// Calls as they end, with filters that live in the address bar and a drawer for one of them.

import { useEffect, useMemo, useRef, useState } from "react";
import { post } from "../api";
import { useAsked, useLive } from "../live";
import { Link, path, setQuery, useRoute } from "../route";
import type { Call, Result, WholeCall } from "../types";
import { clock, seconds } from "../words";
import { Act, Ask, Copy, Empty, Fix, Json, Mark, Outcome, Problem, commandOf } from "./bits";
import { type Column, Grid } from "./grid";
import { Answer } from "./answer";
import { Waterfall } from "./waterfall";

const FIELDS = ["server", "tool", "who", "status", "slow", "retried", "source", "q"];
const CHIPS: [field: string, value: string, title: string][] = [
  ["status", "failed", "Failed"],
  ["status", "unknown", "Outcome unknown"],
  ["slow", "0.1", "≥ 100 ms"],
  ["slow", "1", "≥ 1 s"],
  ["retried", "1", "Retried"],
  ["source", "cache", "From cache"],
];

type Filter = Record<string, string>;

function fits(call: Call, filter: Filter): boolean {
  return (
    (!filter.server || call.server === filter.server) &&
    (!filter.tool || call.tool === filter.tool) &&
    (!filter.who || call.who === filter.who) &&
    (!filter.status || fitsStatus(call, filter.status)) &&
    (!filter.slow || call.seconds >= Number(filter.slow)) &&
    (!filter.retried || call.attempts > 1) &&
    (!filter.source || call.source === filter.source) &&
    (!filter.q || `${call.server}.${call.tool} ${call.id} ${call.outcome} ${call.what}`.toLowerCase().includes(filter.q.toLowerCase()))
  );
}

function fitsStatus(call: Call, status: string): boolean {
  if (status === "failed") return call.outcome !== "ok";
  if (status === "unknown") return call.executed === "unknown";
  return call.outcome === status;
}

export function CallGrid({ fixed = {} }: { fixed?: Filter }) {
  const { query } = useRoute();
  const { calls, passedOver } = useLive();
  const filter: Filter = { ...Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""])), ...fixed };
  const ask = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
  const asked = useAsked<{ calls: Call[] }>(`calls?limit=500&${ask}`);
  const [paused, setPaused] = useState<Call[] | null>(null);
  const filtered = useMemo(() => {
    const seen = new Set<string>();
    const wanted = new URLSearchParams(ask);
    const all = [...calls.filter((call) => fits(call, Object.fromEntries(wanted))), ...(asked.data?.calls ?? [])];
    return all.filter((call) => !seen.has(call.id) && seen.add(call.id)).sort((a, b) => b.at + b.seconds - a.at - a.seconds);
  }, [calls, asked.data, ask]);
  const rows = paused ?? filtered;
  const chosen = query.get("call");
  useEffect(() => setPaused(null), [ask]);
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if (event.key === "p" && !(event.target as HTMLElement).closest("input, textarea, select, dialog")) {
        setPaused((now) => (now ? null : filtered));
      }
    };
    window.addEventListener("keydown", hear);
    return () => window.removeEventListener("keydown", hear);
  });

  const columns: Column<Call>[] = [
    { id: "at", title: "Time", width: "84px", phone: true, show: (call) => <time dateTime={new Date(call.at * 1000).toISOString()}>{clock(call.at)}</time> },
    { id: "outcome", title: "Outcome", width: "minmax(110px, 160px)", phone: true, show: (call) => <Outcome of={call.outcome} /> },
    {
      id: "tool", title: "Tool", width: "minmax(140px, 2fr)", phone: true, show: (call) => (
        <button type="button" className="linklike cut" onClick={() => setQuery({ call: call.id }, "push")}>{call.server}.{call.tool}</button>
      ),
    },
    { id: "seconds", title: "Took", width: "80px", right: true, phone: false, show: (call) => seconds(call.seconds) },
    { id: "attempts", title: "Tries", width: "52px", right: true, show: (call) => (call.attempts > 1 ? <Mark tone="warn">{call.attempts}</Mark> : call.attempts) },
    { id: "executed", title: "Executed", width: "86px", show: (call) => (call.executed === "unknown" ? <Mark tone="warn">unknown</Mark> : call.executed) },
    { id: "who", title: "Who", width: "minmax(70px, 120px)", show: (call) => <span className="cut">{call.who}</span> },
    { id: "source", title: "From", width: "70px", show: (call) => call.source || "server" },
    { id: "what", title: "Error", width: "minmax(80px, 2fr)", show: (call) => <span className="cut muted" title={call.what}>{call.what}</span> },
  ];
  return (
    <>
      <div className="bar">
        <input type="search" aria-label="Search calls" placeholder="Search ( / )" value={filter.q} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Only">
          {CHIPS.map(([field, value, title]) => (
            <button key={title} type="button" aria-pressed={filter[field] === value} onClick={() => setQuery({ [field]: filter[field] === value ? "" : value })}>{title}</button>
          ))}
          {["server", "tool", "who"].filter((name) => filter[name] && !fixed[name]).map((name) => (
            <button key={name} type="button" aria-pressed="true" onClick={() => setQuery({ [name]: "" })}>{name}: {filter[name]} ×</button>
          ))}
        </div>
        <button type="button" aria-pressed={paused !== null} onClick={() => setPaused(paused ? null : filtered)}>
          {paused ? `Resume (${Math.max(0, filtered.length - paused.length)} new)` : "Pause"} <kbd>p</kbd>
        </button>
        <button type="button" disabled={!rows.length} onClick={() => save(rows)}>Export</button>
        {passedOver > 0 && <span className="muted">{passedOver} calls came too fast to be shown</span>}
      </div>
      <div className={chosen ? "split" : "whole"}>
        <Grid
          label="Calls"
          columns={chosen ? columns.slice(0, 4) : columns}
          rows={rows}
          id={(call) => call.id}
          chosen={chosen}
          open={(call) => setQuery({ call: call.id }, "push")}
          empty={ask ? <Empty title="No call that is remembered fits." /> : <Empty title="No call yet." command="toolway tools" />}
        />
        {chosen && <Drawer id={chosen} />}
      </div>
    </>
  );
}

/** The calls in sight as a file: a line of JSON each. */
function save(calls: Call[]): void {
  const address = URL.createObjectURL(new Blob([calls.map((call) => `${JSON.stringify(call)}\n`).join("")], { type: "application/x-ndjson" }));
  const link = Object.assign(document.createElement("a"), { href: address, download: "calls.ndjson" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function Drawer({ id }: { id: string }) {
  const { data: call, error } = useAsked<WholeCall>(`calls/${encodeURIComponent(id)}`);
  const place = useRef<HTMLElement>(null);
  useEffect(() => place.current?.focus(), [id]);
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) setQuery({ call: "" });
    };
    window.addEventListener("keydown", hear);
    return () => window.removeEventListener("keydown", hear);
  }, []);
  return (
    <aside className="drawer" ref={place} tabIndex={-1} aria-label="One call">
      <div className="bar">
        <h2>{call ? `${call.server}.${call.tool}` : id}</h2>
        <button type="button" className="quiet" onClick={() => setQuery({ call: "" })} aria-label="Close">✕</button>
      </div>
      {error && <Problem of={error} />}
      {call && <Whole call={call} />}
    </aside>
  );
}

function Whole({ call }: { call: WholeCall }) {
  const [again, setAgain] = useState<Result | null>(null);
  const args = call.arguments !== null && typeof call.arguments === "object" ? (call.arguments as Record<string, unknown>) : {};
  const replay = (body: object) => async () => setAgain(await post<Result>(`calls/${encodeURIComponent(call.id)}/replay`, body));
  return (
    <>
      <p>
        <Outcome of={call.outcome} /> in {seconds(call.seconds)}, {call.attempts === 1 ? "one try" : `${call.attempts} tries`}
        {" · "}executed: <strong>{call.executed}</strong> <span className="muted">({call.certainty})</span>
      </p>
      {call.what && (
        <div className="problem">
          <strong>{call.what}</strong>
          {call.evidence && <p>{call.evidence}</p>}
          <Fix text={call.fix} />
        </div>
      )}
      <h3>Where the time went</h3>
      <Waterfall call={call} />
      <h3>Arguments</h3>
      {call.arguments === null ? <p className="muted">Not kept: there were none, or too many.</p> : <Json of={call.arguments} />}
      <dl className="facts">
        <dt>When</dt><dd>{clock(call.at)}</dd>
        <dt>Who</dt><dd><Link to={`/calls?who=${encodeURIComponent(call.who)}`}>{call.who}</Link></dd>
        <dt>Server</dt><dd><Link to={path("servers", call.server)}>{call.server}</Link></dd>
        <dt>Effect</dt><dd>{call.effect || "–"}</dd>
        <dt>Id</dt><dd><code>{call.id}</code> <Copy text={call.id} /></dd>
        {call.trace && (<><dt>Trace</dt><dd><code>{call.trace}</code> <Copy text={call.trace} /></dd></>)}
      </dl>
      <div className="actions">
        <Copy text={commandOf(call.server, call.tool, args)} label="Copy as command" />
        {call.method === "tools/call" && call.arguments !== null &&
          (call.effect === "unsafe" || call.effect === "" ? (
            <Ask title="Make this call once more?" text={`${call.server}.${call.tool} may change something each time it is called.`} yes="Replay" act={replay({ confirm: true })}>
              {(ask) => <button type="button" onClick={ask}>Replay</button>}
            </Ask>
          ) : (
            <Act act={replay({})}>Replay</Act>
          ))}
        <Link to={path("tools", call.server, call.tool)}>Open in the playground</Link>
      </div>
      {again && <Answer of={again} />}
    </>
  );
}
