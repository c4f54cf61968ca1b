import { useDeferredValue, useMemo } from "react";
import { useAdmin, useLive } from "../live";
import { Link, go, path, setQuery, useRoute } from "../route";
import type { ToolRow } from "../types";
import { TOKENS, formatCount, estimateTokens } from "../format";
import { Empty, Badge, ErrorBox, ProportionBar } from "./common";
import { search } from "./fuzzy";
import { type Column, Table, sortRows } from "./table";

const VALUES: Record<string, (row: ToolRow) => string | number> = {
  tool: (row) => `${row.server}.${row.tool}`,
  kind: (row) => (row.destructive ? 2 : row.read_only ? 0 : 1),
  tokens: (row) => row.size,
};
const CHIPS: [string, string, (row: ToolRow) => boolean][] = [
  ["read", "Read-only", (row) => row.read_only],
  ["destructive", "Destructive", (row) => row.destructive],
  ["large", "≥ 500 tokens", (row) => estimateTokens(row.size) >= 500],
];

export function ToolTable({ server }: { server?: string }) {
  const { query } = useRoute();
  const count = useLive().overview?.servers.reduce((sum, each) => sum + each.tools, 0);
  const { data, error } = useAdmin<{ tools: ToolRow[] }>("tool-list", count);
  const [text, only, sort] = [query.get("q") ?? "", query.get("only") ?? "", query.get("sort") ?? "tool"];
  const all = useMemo(() => (data?.tools ?? []).filter((row) => !server || row.server === server), [data, server]);
  const searchText = useDeferredValue(text); // typed text appears before the search runs
  const rows = useMemo(() => {
    const test = CHIPS.find(([id]) => id === only)?.[2] ?? (() => true);
    const matching = all.filter(test);
    return searchText
      ? search(matching, searchText, (row) => `${row.server}.${row.tool} ${row.title} ${row.description}`)
      : sortRows(matching, sort, VALUES);
  }, [all, only, searchText, sort]);
  const size = rows.reduce((sum, row) => sum + row.size, 0);
  const largest = Math.max(1, ...rows.slice(0, 2000).map((row) => row.size));
  const columns: Column<ToolRow>[] = [
    { id: "tool", title: "Tool", width: "minmax(180px, 1.2fr)", phone: true, show: (row) => <Link className="cut" to={path("tools", row.server, row.tool)}>{server ? row.tool : `${row.server}.${row.tool}`}</Link> },
    { id: "kind", title: "Effect", width: "118px", show: (row) => (row.destructive ? <Badge tone="warn">destructive</Badge> : row.read_only ? <Badge tone="good">read-only</Badge> : <Badge tone="idle">not declared</Badge>) },
    { id: "tokens", title: "Tokens (OpenAI)", width: "126px", right: true, phone: true, show: (row) => <><ProportionBar value={row.size} max={largest} /> {formatCount(estimateTokens(row.size))}</> },
    { id: "description", title: "Description", width: "minmax(160px, 2fr)", show: (row) => <span className="cut muted" title={row.description}>{row.description}</span> },
  ];
  if (error) return <ErrorBox error={error} />;
  return (
    <>
      <div className="bar">
        <input type="search" aria-label="Search tools" placeholder="Search all tools ( / )" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Only">
          {CHIPS.map(([id, title]) => (
            <button key={id} type="button" aria-pressed={only === id} onClick={() => setQuery({ only: only === id ? "" : id })}>{title}</button>
          ))}
        </div>
        <span className="muted" role="status">{rows.length} of {all.length} tools, about {formatCount(estimateTokens(size))} {TOKENS}</span>
      </div>
      <Table
        label="Tools"
        columns={columns}
        rows={rows}
        id={(row) => `${row.server}.${row.tool}`}
        open={(row) => go(path("tools", row.server, row.tool))}
        sort={text ? undefined : sort}
        setSort={(next) => next.replace("-", "") !== "description" && setQuery({ sort: next })}
        empty={data ? <Empty title={text || only ? "No tool matches." : "No server has listed a tool yet."} command={text || only ? undefined : "toolway doctor"} /> : <p className="muted">…</p>}
      />
    </>
  );
}
