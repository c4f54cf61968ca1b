import { useState } from "react";
import { post } from "../api";
import { look, useLive } from "../live";
import { Act, Empty, Health, Spark } from "../parts/bits";
import { best } from "../parts/fuzzy";
import { type Column, Grid, sorted } from "../parts/grid";
import { Link, go, path, setQuery, useRoute } from "../route";
import type { ServerRow } from "../types";
import { healthOf, many, seconds, share } from "../words";

const ORDER: Record<string, number> = { bad: 0, warn: 1, good: 2, idle: 3 };
const VALUES: Record<string, (row: ServerRow) => string | number> = {
  state: (row) => -(ORDER[healthOf(row)[0]] ?? 9),
  server: (row) => row.server,
  transport: (row) => row.transport,
  calls: (row) => row.pulse.calls,
  p95: (row) => row.pulse.p95 ?? 0,
  errors: (row) => (row.pulse.calls ? row.pulse.errors / row.pulse.calls : 0),
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
  ["ill", "Not well", (row) => ["bad", "warn"].includes(healthOf(row)[0])],
  ["ready", "Ready", (row) => row.state === "ready"],
  ["off", "Asleep or off", (row) => healthOf(row)[0] === "idle"],
];

export function Servers() {
  const { overview } = useLive();
  const { query } = useRoute();
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const all = overview?.servers ?? [];
  const cluster = overview?.cluster; // its column takes the room of the protocol
  const [show, text, sort] = [query.get("show") ?? "", query.get("q") ?? "", query.get("sort") ?? "-state"];
  const fits = SHOW.find(([id]) => id === show)?.[2] ?? (() => true);
  const found = best(all.filter(fits), text, (row) => `${row.server} ${row.transport} ${row.state} ${row.nodes.join(" ")}`);
  const rows = text ? found : sorted(found, sort, VALUES);

  const toggle = (name: string) => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    setChosen(next);
  };
  const columns: Column<ServerRow>[] = [
    {
      id: "", title: "", width: "28px", show: (row) => (
        <input type="checkbox" checked={chosen.has(row.server)} onChange={() => toggle(row.server)} aria-label={`Choose ${row.server}`} />
      ),
    },
    { id: "state", title: "State", width: "112px", phone: true, show: (row) => <Health of={row} /> },
    { id: "server", title: "Server", width: "minmax(120px, 1fr)", phone: true, show: (row) => <Link to={path("servers", row.server)}>{row.server}</Link> },
    { id: "transport", title: "Way", width: cluster ? "64px" : "136px", show: (row) => <>{row.transport} {!cluster && <small className="muted">{row.protocol}</small>}</> },
    {
      id: "calls", title: "Calls, 30 min", width: "132px", show: (row) => (
        <span className="withspark">
          <Spark values={row.pulse.per_minute} errors={row.pulse.errors_per_minute} label={`${row.pulse.calls} calls in 30 minutes`} /> {many(row.pulse.calls)}
        </span>
      ),
    },
    { id: "p95", title: "p95", width: "64px", right: true, phone: true, show: (row) => seconds(row.pulse.p95) },
    { id: "errors", title: "Failed", width: "54px", right: true, show: (row) => share(row.pulse.errors, row.pulse.calls) },
    { id: "flight", title: "In flight", width: "62px", right: true, show: (row) => `${row.in_flight} / ${row.limit}` },
    { id: "tools", title: "Tools", width: "46px", right: true, show: (row) => row.tools },
    { id: "restarts", title: "Restarts", width: "62px", right: true, show: (row) => row.restarts },
    ...(cluster ? [OWNER] : []),
    { id: "why", title: "Why", width: "minmax(120px, 2fr)", show: (row) => <span className="cut muted" title={row.why}>{row.why}</span> },
  ];
  const names = [...chosen].filter((name) => all.some((row) => row.server === name));
  const each = (wish: string) => async () => {
    for (const name of names) await post(`servers/${name}/${wish}`);
    setChosen(new Set());
    await look();
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
        {names.length > 0 && (
          <div className="actions" role="group" aria-label="With the chosen">
            <span>{names.length} chosen</span>
            <Act act={each("restart")}>Restart</Act>
            <Act act={each("disable")}>Disable</Act>
            <Act act={each("enable")}>Enable</Act>
          </div>
        )}
      </div>
      <Grid
        label="Servers"
        columns={columns}
        rows={rows}
        id={(row) => row.server}
        open={(row) => go(path("servers", row.server))}
        sort={sort}
        setSort={(next) => next.replace("-", "") !== "why" && setQuery({ sort: next, q: "" })}
        empty={overview ? <Empty title={text || show ? "No server fits." : "There is no server yet."} command={text || show ? undefined : "toolway add time -- uvx mcp-server-time"} /> : <p className="muted">…</p>}
      />
    </div>
  );
}
