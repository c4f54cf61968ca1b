import { useState } from "react";
import { post } from "../api";
import { refresh, useLive } from "../live";
import { ActionButton, Empty, Health, Sparkline } from "../components/common";
import { search } from "../components/fuzzy";
import { SavedViews } from "../components/saved_views";
import { type Column, Table, sortRows } from "../components/table";
import { Link, go, path, setQuery, useRoute } from "../route";
import type { ServerRow } from "../types";
import { serverHealth, formatCount, formatSeconds, formatFailures } from "../format";

const ORDER: Record<string, number> = { bad: 0, warn: 1, good: 2, idle: 3 };
const VALUES: Record<string, (row: ServerRow) => string | number> = {
  state: (row) => -(ORDER[serverHealth(row)[0]] ?? 9),
  server: (row) => row.server,
  transport: (row) => row.transport,
  calls: (row) => row.minutes.calls,
  p95: (row) => row.minutes.p95 ?? 0,
  errors: (row) => (row.minutes.calls ? row.minutes.errors / row.minutes.calls : 0),
  flight: (row) => row.in_flight,
  tools: (row) => row.tools,
  restarts: (row) => row.restarts,
  owner: (row) => row.nodes.join(" "),
};
const OWNER: Column<ServerRow> = {
  id: "owner", title: "Owner", width: "minmax(90px, 0.8fr)",
  show: ({ nodes }) => (nodes.length ? <Link to="/nodes" className="cut" title={nodes.join(", ")}>{nodes.join(", ")}</Link> : "–"),
};
const SHOW: [string, string, (row: ServerRow) => boolean][] = [
  ["", "All", () => true],
  ["unhealthy", "Unhealthy", (row) => ["bad", "warn"].includes(serverHealth(row)[0])],
  ["ready", "Ready", (row) => row.state === "ready"],
  ["off", "Idle or disabled", (row) => serverHealth(row)[0] === "idle"],
];

export function Servers() {
  const { overview } = useLive();
  const { query } = useRoute();
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const all = overview?.servers ?? [];
  const cluster = overview?.cluster; // then the column of owners replaces the protocol
  const [show, text, sort] = [query.get("show") ?? "", query.get("q") ?? "", query.get("sort") ?? "-state"];
  const matches = SHOW.find(([id]) => id === show)?.[2] ?? (() => true);
  const found = search(all.filter(matches), text, (row) => `${row.server} ${row.transport} ${row.state} ${row.nodes.join(" ")}`);
  const rows = text ? found : sortRows(found, sort, VALUES);

  const toggle = (name: string) => {
    const next = new Set(selected);
    if (!next.delete(name)) next.add(name);
    setSelected(next);
  };
  const columns: Column<ServerRow>[] = [
    {
      id: "", title: "", width: "28px", show: (row) => (
        <input type="checkbox" checked={selected.has(row.server)} onChange={() => toggle(row.server)} aria-label={`Select ${row.server}`} />
      ),
    },
    { id: "state", title: "State", width: "112px", phone: true, show: (row) => <Health server={row} /> },
    { id: "server", title: "Server", width: "minmax(120px, 1fr)", phone: true, show: (row) => <Link to={path("servers", row.server)}>{row.server}</Link> },
    { id: "transport", title: "Transport", width: cluster ? "76px" : "136px", show: (row) => <>{row.transport} {!cluster && <small className="muted">{row.protocol}</small>}</> },
    {
      id: "calls", title: "Calls, 30 min", width: "132px", show: (row) => (
        <span className="withspark">
          <Sparkline values={row.minutes.per_minute} errors={row.minutes.errors_per_minute} label={`${row.minutes.calls} calls in 30 minutes`} /> {formatCount(row.minutes.calls)}
        </span>
      ),
    },
    { id: "p95", title: "p95", width: "64px", right: true, phone: true, show: (row) => formatSeconds(row.minutes.p95) },
    { id: "errors", title: "Failed", width: "54px", right: true, show: (row) => formatFailures(row.minutes.errors, row.minutes.calls) },
    { id: "flight", title: "In flight", width: "62px", right: true, show: (row) => `${row.in_flight} / ${row.limit}` },
    { id: "tools", title: "Tools", width: "46px", right: true, show: (row) => row.tools },
    { id: "restarts", title: "Restarts", width: "62px", right: true, show: (row) => row.restarts },
    ...(cluster ? [OWNER] : []),
    { id: "why", title: "Cause", width: "minmax(120px, 2fr)", show: (row) => <span className="cut muted" title={row.why}>{row.why}</span> },
  ];
  const names = [...selected].filter((name) => all.some((row) => row.server === name));
  const forSelected = (command: string) => async () => {
    for (const name of names) await post(`servers/${name}/${command}`);
    setSelected(new Set());
    await refresh();
  };
  return (
    <div className="page full">
      <div className="bar">
        <h1>Servers</h1>
        <input type="search" placeholder="Filter ( / )" aria-label="Filter servers" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Show">
          {SHOW.map(([id, title, test]) => (
            <button key={id} type="button" aria-pressed={show === id} onClick={() => setQuery({ show: id })}>
              {title} <small>{all.filter(test).length}</small>
            </button>
          ))}
        </div>
        <SavedViews page="/servers" />
        <Link to="/add" className="button primary">Add server</Link>
        {names.length > 0 && (
          <div className="actions" role="group" aria-label="Selected servers">
            <span>{names.length} selected</span>
            <ActionButton action={forSelected("restart")}>Restart</ActionButton>
            <ActionButton action={forSelected("disable")}>Disable</ActionButton>
            <ActionButton action={forSelected("enable")}>Enable</ActionButton>
          </div>
        )}
      </div>
      <Table
        label="Servers"
        columns={columns}
        rows={rows}
        id={(row) => row.server}
        open={(row) => go(path("servers", row.server))}
        sort={sort}
        setSort={(next) => next.replace("-", "") !== "why" && setQuery({ sort: next, q: "" })}
        empty={overview ? <Empty title={text || show ? "No server matches." : "No servers."} command={text || show ? undefined : "toolway add time -- uvx mcp-server-time"}>{!text && !show && <Link to="/add">Add a server</Link>}</Empty> : <p className="muted">…</p>}
      />
    </div>
  );
}
