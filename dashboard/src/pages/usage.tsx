import { useMemo } from "react";
import { useAdmin, useLive } from "../live";
import { Empty, ProportionBar, Sparkline, Tabs } from "../components/common";
import { Link, path, setQuery, useRoute } from "../route";
import type { AgentRow, Call } from "../types";
import { failureTone, formatCount, formatFailures, formatSeconds, formatTime, formatUsd } from "../format";

const BUCKETS = 30;
const BY: [string, string][] = [["server", "Servers"], ["tool", "Tools"], ["principal", "Keys"]];
const MAX_ROWS = 100;

interface Row {
  name: string;
  to: string;
  calls: number;
  failed: number;
  p50: number;
  p95: number;
  total: number; // seconds of all calls
  slowest: number[]; // milliseconds, by bucket
  none: number[];
}

/** Latency over time of the stored calls by server, tool or API key, and the cost of agent runs by model. */
export function Usage() {
  const { calls } = useLive();
  const { query } = useRoute();
  const by = query.get("by") ?? "server";
  const stored = useAdmin<{ calls: Call[] }>("calls?limit=500").data?.calls;
  const agents = useAdmin<{ runs: AgentRow[] }>("agents?limit=100").data?.runs ?? [];
  const all = useMemo(() => {
    const known = new Set(calls.map((call) => call.id));
    return [...calls, ...(stored ?? []).filter((call) => !known.has(call.id))];
  }, [calls, stored]);
  const rows = useMemo(() => groupCalls(all, by), [all, by]);
  const [from, to] = span(all);
  const most = Math.max(1e-9, ...rows.map((row) => row.total));
  return (
    <div className="page">
      <div className="bar">
        <h1>Usage</h1>
        <span className="muted">{all.length ? `the last ${formatCount(all.length)} calls, ${formatTime(from)} to ${formatTime(to)}` : ""}</span>
      </div>
      <Tabs label="Usage by" tabs={BY} selected={by} onSelect={(id) => setQuery({ by: id === "server" ? "" : id })} />
      {!rows.length && <Empty title="No calls yet." command="toolway tools" />}
      {rows.length > 0 && (
        <div className="tablebox" tabIndex={0} role="region" aria-label="Latency">
          <table>
            <thead><tr><th>{BY.find(([id]) => id === by)?.[1]}</th><th className="right">Calls</th><th className="right">Failed</th><th className="right">p50</th><th className="right">p95</th><th className="wideonly">Slowest over time</th><th className="right">Time in total</th></tr></thead>
            <tbody>
              {rows.slice(0, MAX_ROWS).map((row) => (
                <tr key={row.name}>
                  <td><Link to={row.to}>{row.name}</Link></td>
                  <td className="right">{formatCount(row.calls)}</td>
                  <td className={`right ${failureTone(row.failed, row.calls)}`}>{formatFailures(row.failed, row.calls)}</td>
                  <td className="right">{formatSeconds(row.p50)}</td>
                  <td className="right">{formatSeconds(row.p95)}</td>
                  <td className="wideonly"><Sparkline values={row.slowest} errors={row.none} label={`slowest calls of ${row.name} over time, at most ${formatSeconds(Math.max(...row.slowest) / 1000)}`} /></td>
                  <td className="right"><ProportionBar value={row.total / most} max={1} /> {formatSeconds(row.total)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <AgentCosts runs={agents} />
      <p className="muted">The gateway keeps only the last calls in memory. For longer periods, use <code>/metrics</code> and the audit log.</p>
    </div>
  );
}

function AgentCosts({ runs }: { runs: AgentRow[] }) {
  const models = new Map<string, { runs: number; input: number; output: number; usd: number | null }>();
  for (const run of runs) {
    const known = models.get(run.model) ?? { runs: 0, input: 0, output: 0, usd: 0 };
    models.set(run.model, {
      runs: known.runs + 1, input: known.input + run.input_tokens, output: known.output + run.output_tokens,
      usd: known.usd === null || run.usd === null ? null : known.usd + run.usd,
    });
  }
  if (!models.size) return null;
  return (
    <section className="card" aria-label="Cost of agent runs">
      <h2>Cost of agent runs</h2>
      <div className="tablebox bare" tabIndex={0} role="region" aria-label="Models">
        <table>
          <thead><tr><th>Model</th><th className="right">Runs</th><th className="right">Input tokens</th><th className="right">Output tokens</th><th className="right">Cost</th></tr></thead>
          <tbody>
            {[...models].map(([model, each]) => (
              <tr key={model}><td>{model}</td><td className="right">{each.runs}</td><td className="right">{formatCount(each.input)}</td><td className="right">{formatCount(each.output)}</td><td className="right">{formatUsd(each.usd)}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function span(calls: Call[]): [number, number] {
  const times = calls.map((call) => call.at);
  return [times.reduce((a, b) => Math.min(a, b), Infinity), times.reduce((a, b) => Math.max(a, b), 0)];
}

/** Group calls by server, tool or API key. The slowest in total is first. */
function groupCalls(calls: Call[], by: string): Row[] {
  const [from, to] = span(calls);
  const width = Math.max(1, (to - from) / BUCKETS);
  const groups = new Map<string, Call[]>();
  for (const call of calls) {
    const name = by === "tool" ? `${call.server}.${call.tool}` : by === "principal" ? call.principal : call.server;
    const known = groups.get(name);
    if (known) known.push(call);
    else groups.set(name, [call]);
  }
  const rows = [...groups].map(([name, group]): Row => {
    const first = group[0]!;
    const seconds = group.map((call) => call.seconds).sort((a, b) => a - b);
    const slowest = Array.from({ length: BUCKETS }, () => 0);
    for (const call of group) {
      const at = Math.min(BUCKETS - 1, Math.floor((call.at - from) / width));
      slowest[at] = Math.max(slowest[at]!, call.seconds * 1000);
    }
    return {
      name, calls: group.length, failed: group.filter((call) => call.failed).length, p50: percentile(seconds, 0.5), p95: percentile(seconds, 0.95),
      to: by === "tool" ? path("tools", first.server, first.tool) : by === "principal" ? `/calls?principal=${encodeURIComponent(name)}` : path("servers", name),
      total: seconds.reduce((a, b) => a + b, 0), slowest, none: slowest.map(() => 0),
    };
  });
  return rows.sort((a, b) => b.total - a.total);
}

const percentile = (sorted: number[], share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
