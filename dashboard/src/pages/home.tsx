import { Empty, Hint, Health, Outcome, ProportionBar, Sparkline } from "../components/common";
import { useAdmin, useLive } from "../live";
import { Alerts } from "../components/alerts";
import { Link, path } from "../route";
import type { Endpoints, Overview, ServerRow } from "../types";
import { formatAge, serverHealth, formatCount, formatSeconds, failureTone, formatFailures, estimateTokens } from "../format";

export function Home() {
  const { overview, error } = useLive();
  if (!overview) return <p className="muted wait">{error ? error.message : "Loading…"}</p>;
  if (!overview.servers.length) {
    return <Empty title="This gateway has no servers." command="toolway add time -- uvx mcp-server-time" />;
  }
  return (
    <div className="page">
      <Sentence overview={overview} />
      <Tiles overview={overview} />
      <Attention overview={overview} />
      <Alerts compact />
      <div className="columns">
        <Ranking title="Busiest" overview={overview} value={(s) => s.minutes.calls} show={(s) => `${formatCount(s.minutes.calls)} calls`} />
        <Ranking title="Slowest" overview={overview} value={(s) => s.minutes.p95 ?? 0} show={(s) => `p95 ${formatSeconds(s.minutes.p95)}`} />
        <Ranking title="Most failures" overview={overview} value={(s) => s.minutes.errors} show={(s) => formatFailures(s.minutes.errors, s.minutes.calls)} />
        <Failures />
        <Costs />
      </div>
    </div>
  );
}

function Sentence({ overview }: { overview: Overview }) {
  const counted = overview.servers.filter((server) => server.state !== "disabled");
  const bad = counted.filter((server) => serverHealth(server)[0] === "bad");
  const healthy = counted.length - bad.length;
  const worst = bad[0];
  return (
    <h1 className="sentence">
      {bad.length === 0 ? `All ${counted.length} servers are healthy.` : `${healthy} of ${counted.length} servers are healthy; `}
      {worst && (
        <>
          <Link to={path("servers", worst.server)}>{worst.server}</Link> {bad.length > 1 ? `and ${bad.length - 1} more are not.` : "is not."}
        </>
      )}
    </h1>
  );
}

function Tiles({ overview }: { overview: Overview }) {
  const { minutes } = overview;
  const recent = minutes.per_minute.slice(-6, -1);
  const rate = recent.reduce((a, b) => a + b, 0) / Math.max(1, recent.length);
  const inFlight = overview.servers.reduce((sum, server) => sum + server.in_flight, 0);
  const open = overview.servers.filter((server) => server.breaker !== "closed" || server.open_tools).length;
  return (
    <dl className="tiles">
      <div className="wide">
        <dt>Calls, last 30 minutes</dt>
        <dd>{formatCount(minutes.calls)}<Sparkline values={minutes.per_minute} errors={minutes.errors_per_minute} label={`${minutes.calls} calls, ${minutes.errors} failed`} /></dd>
      </div>
      <div><dt>Per minute</dt><dd>{rate < 10 ? rate.toFixed(1) : formatCount(Math.round(rate))}</dd></div>
      <div><dt>Failed</dt><dd className={failureTone(minutes.errors, minutes.calls)}>{formatFailures(minutes.errors, minutes.calls)}</dd></div>
      <div><dt>p50</dt><dd>{formatSeconds(minutes.p50)}</dd></div>
      <div><dt>p95</dt><dd>{formatSeconds(minutes.p95)}</dd></div>
      <div><dt>p99</dt><dd>{formatSeconds(minutes.p99)}</dd></div>
      <div><dt>In flight</dt><dd>{inFlight}</dd></div>
      <div><dt>Open breakers</dt><dd className={open ? "bad" : ""}>{open}</dd></div>
    </dl>
  );
}

function Attention({ overview }: { overview: Overview }) {
  const unhealthy = overview.servers.filter((server) => ["bad", "warn"].includes(serverHealth(server)[0]));
  if (!unhealthy.length) return null;
  return (
    <section className="card">
      <h2>Needs attention</h2>
      <ul className="attention">
        {unhealthy.slice(0, 8).map((server) => (
          <li key={server.server}>
            <Health server={server} />
            <div>
              <Link to={path("servers", server.server)}>{server.server}</Link>
              <p>{server.why}</p>
              <Hint text={server.hint} />
            </div>
          </li>
        ))}
      </ul>
      {unhealthy.length > 8 && <Link to="/servers?show=unhealthy">and {unhealthy.length - 8} more</Link>}
    </section>
  );
}

function Ranking({ title, overview, value, show }: {
  title: string;
  overview: Overview;
  value: (server: ServerRow) => number;
  show: (server: ServerRow) => string;
}) {
  const rows = overview.servers.filter((server) => value(server) > 0).sort((a, b) => value(b) - value(a)).slice(0, 5);
  return (
    <section className="card">
      <h2>{title}</h2>
      {rows.length === 0 && <p className="muted">No calls yet.</p>}
      <ul className="ranking">
        {rows.map((server) => (
          <li key={server.server}>
            <Link to={path("servers", server.server)}>{server.server}</Link>
            <Sparkline values={server.minutes.per_minute} errors={server.minutes.errors_per_minute} label={`${server.minutes.calls} calls in 30 minutes`} />
            <span>{show(server)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Failures() {
  const failed = useLive().calls.filter((call) => call.failed).slice(0, 6);
  return (
    <section className="card">
      <h2><Link to="/calls?status=failed">Recent failures</Link></h2>
      {failed.length === 0 && <p className="muted">No failures in the stored calls.</p>}
      <ul className="ranking">
        {failed.map((call) => (
          <li key={call.id}>
            <Link to={`/calls?status=failed&call=${encodeURIComponent(call.id)}`}>{call.server}.{call.tool}</Link>
            <Outcome of={call} />
            <span>{formatAge(call.at)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Costs() {
  const toolsets = useAdmin<Endpoints>("toolsets").data?.toolsets;
  if (!toolsets?.length) return null;
  const largest = Math.max(1, ...toolsets.map((toolset) => toolset.size));
  return (
    <section className="card">
      <h2><Link to="/toolsets">Tokens (OpenAI) per toolset</Link></h2>
      <ul className="ranking">
        {toolsets.map((toolset) => (
          <li key={toolset.name}>
            <span>{toolset.name}</span>
            <ProportionBar value={toolset.size} max={largest} />
            <span>≈ {formatCount(estimateTokens(toolset.size))}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
