import { useDeferredValue, useMemo } from "react";
import { useAsked, useLive } from "../live";
import { Link, go, path, setQuery, useRoute } from "../route";
import type { ToolRow } from "../types";
import { many, tokens } from "../words";
import { Empty, Mark, Problem, Share } from "./bits";
import { best } from "./fuzzy";
import { type Column, Grid, sorted } from "./grid";

const VALUES: Record<string, (row: ToolRow) => string | number> = {
  tool: (row) => `${row.server}.${row.tool}`,
  kind: (row) => (row.destructive ? 2 : row.read_only ? 0 : 1),
  tokens: (row) => row.size,
};
const CHIPS: [string, string, (row: ToolRow) => boolean][] = [
  ["read", "Read only", (row) => row.read_only],
  ["destructive", "Destructive", (row) => row.destructive],
  ["dear", "≥ 500 tokens", (row) => tokens(row.size) >= 500],
];

export function ToolGrid({ server }: { server?: string }) {
  const { query } = useRoute();
  const count = useLive().overview?.servers.reduce((sum, each) => sum + each.tools, 0);
  const { data, error } = useAsked<{ tools: ToolRow[] }>("catalog", count);
  const [text, only, sort] = [query.get("q") ?? "", query.get("only") ?? "", query.get("sort") ?? "tool"];
  const all = useMemo(() => (data?.tools ?? []).filter((row) => !server || row.server === server), [data, server]);
  const wanted = useDeferredValue(text); // a key that is pressed is shown before anything is searched
  const rows = useMemo(() => {
    const test = CHIPS.find(([id]) => id === only)?.[2] ?? (() => true);
    const fitting = all.filter(test);
    return wanted
      ? best(fitting, wanted, (row) => `${row.server}.${row.tool} ${row.title} ${row.description}`)
      : sorted(fitting, sort, VALUES);
  }, [all, only, wanted, sort]);
  const size = rows.reduce((sum, row) => sum + row.size, 0);
  const most = Math.max(1, ...rows.slice(0, 2000).map((row) => row.size));
  const columns: Column<ToolRow>[] = [
    { id: "tool", title: "Tool", width: "minmax(180px, 1.2fr)", phone: true, show: (row) => <Link className="cut" to={path("tools", row.server, row.tool)}>{server ? row.tool : `${row.server}.${row.tool}`}</Link> },
    { id: "kind", title: "Does", width: "118px", show: (row) => (row.destructive ? <Mark tone="warn">destructive</Mark> : row.read_only ? <Mark tone="good">reads</Mark> : <Mark tone="idle">not said</Mark>) },
    { id: "tokens", title: "Tokens", width: "118px", right: true, phone: true, show: (row) => <><Share of={row.size} most={most} /> {many(tokens(row.size))}</> },
    { id: "what", title: "What it says of itself", width: "minmax(160px, 2fr)", show: (row) => <span className="cut muted" title={row.description}>{row.description}</span> },
  ];
  if (error) return <Problem of={error} />;
  return (
    <>
      <div className="bar">
        <input type="search" aria-label="Search tools" placeholder="Search all tools ( / )" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Only">
          {CHIPS.map(([id, title]) => (
            <button key={id} type="button" aria-pressed={only === id} onClick={() => setQuery({ only: only === id ? "" : id })}>{title}</button>
          ))}
        </div>
        <span className="muted" role="status">{rows.length} of {all.length} tools, about {many(tokens(size))} tokens</span>
      </div>
      <Grid
        label="Tools"
        columns={columns}
        rows={rows}
        id={(row) => `${row.server}.${row.tool}`}
        open={(row) => go(path("tools", row.server, row.tool))}
        sort={text ? undefined : sort}
        setSort={(next) => next.replace("-", "") !== "what" && setQuery({ sort: next })}
        empty={data ? <Empty title={text || only ? "No tool fits." : "No server has shown a tool yet."} command={text || only ? undefined : "toolway doctor"} /> : <p className="muted">…</p>}
      />
    </>
  );
}
