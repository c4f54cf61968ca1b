import { Empty, Fix, Health, Outcome, Share, Spark } from "../parts/bits";
import { useAsked, useLive } from "../live";
import { Matters } from "../parts/matters";
import { Link, path } from "../route";
import type { Endpoints, Overview, ServerRow } from "../types";
import { ago, healthOf, many, seconds, share, tokens } from "../words";

export function Home() {
  const { overview, error } = useLive();
  if (!overview) return <p className="muted wait">{error ? error.message : "Asking the gateway…"}</p>;
  if (!overview.servers.length) {
    return <Empty title="This gateway has no server yet." command="toolway add time -- uvx mcp-server-time" />;
  }
  return (
    <div className="page">
      <Sentence of={overview} />
      <Tiles of={overview} />
      <Attention of={overview} />
      <Matters few />
      <div className="columns">
        <Ranking title="Busiest" of={overview} by={(s) => s.pulse.calls} show={(s) => `${many(s.pulse.calls)} calls`} />
        <Ranking title="Slowest" of={overview} by={(s) => s.pulse.p95 ?? 0} show={(s) => `p95 ${seconds(s.pulse.p95)}`} />
        <Ranking title="Most failures" of={overview} by={(s) => s.pulse.errors} show={(s) => share(s.pulse.errors, s.pulse.calls)} />
        <Failures />
        <Costs />
      </div>
    </div>
  );
}

function Sentence({ of }: { of: Overview }) {
  const counted = of.servers.filter((server) => server.state !== "disabled");
  const bad = counted.filter((server) => healthOf(server)[0] === "bad");
  const well = counted.length - bad.length;
  const worst = bad[0];
  return (
    <h1 className="sentence">
      {bad.length === 0 ? `All ${counted.length} servers are well.` : `${well} of ${counted.length} servers are well; `}
      {worst && (
        <>
          <Link to={path("servers", worst.server)}>{worst.server}</Link> {bad.length > 1 ? `and ${bad.length - 1} more are not.` : "is not."}
        </>
      )}
    </h1>
  );
}

function Tiles({ of }: { of: Overview }) {
  const { pulse } = of;
  const recent = pulse.per_minute.slice(-6, -1);
  const rate = recent.reduce((a, b) => a + b, 0) / Math.max(1, recent.length);
  const flying = of.servers.reduce((sum, server) => sum + server.in_flight, 0);
  const open = of.servers.filter((server) => server.breaker !== "closed" || server.open_tools).length;
  return (
    <dl className="tiles">
      <div className="wide">
        <dt>Calls, last 30 minutes</dt>
        <dd>{many(pulse.calls)}<Spark values={pulse.per_minute} errors={pulse.errors_per_minute} label={`${pulse.calls} calls, ${pulse.errors} failed`} /></dd>
      </div>
      <div><dt>A minute</dt><dd>{rate < 10 ? rate.toFixed(1) : many(Math.round(rate))}</dd></div>
      <div><dt>Failed</dt><dd className={pulse.errors ? "bad" : ""}>{share(pulse.errors, pulse.calls)}</dd></div>
      <div><dt>p50</dt><dd>{seconds(pulse.p50)}</dd></div>
      <div><dt>p95</dt><dd>{seconds(pulse.p95)}</dd></div>
      <div><dt>p99</dt><dd>{seconds(pulse.p99)}</dd></div>
      <div><dt>In flight</dt><dd>{flying}</dd></div>
      <div><dt>Breakers open</dt><dd className={open ? "bad" : ""}>{open}</dd></div>
    </dl>
  );
}

function Attention({ of }: { of: Overview }) {
  const ill = of.servers.filter((server) => ["bad", "warn"].includes(healthOf(server)[0]));
  if (!ill.length) return null;
  return (
    <section className="card">
      <h2>Needs attention</h2>
      <ul className="attention">
        {ill.slice(0, 8).map((server) => (
          <li key={server.server}>
            <Health of={server} />
            <div>
              <Link to={path("servers", server.server)}>{server.server}</Link>
              <p>{server.why}</p>
              <Fix text={server.fix} />
            </div>
          </li>
        ))}
      </ul>
      {ill.length > 8 && <Link to="/servers?show=ill">and {ill.length - 8} more</Link>}
    </section>
  );
}

function Ranking({ title, of, by, show }: {
  title: string;
  of: Overview;
  by: (server: ServerRow) => number;
  show: (server: ServerRow) => string;
}) {
  const rows = of.servers.filter((server) => by(server) > 0).sort((a, b) => by(b) - by(a)).slice(0, 5);
  return (
    <section className="card">
      <h2>{title}</h2>
      {rows.length === 0 && <p className="muted">Nothing yet.</p>}
      <ul className="ranking">
        {rows.map((server) => (
          <li key={server.server}>
            <Link to={path("servers", server.server)}>{server.server}</Link>
            <Spark values={server.pulse.per_minute} errors={server.pulse.errors_per_minute} label={`${server.pulse.calls} calls in 30 minutes`} />
            <span>{show(server)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Failures() {
  const failed = useLive().calls.filter((call) => call.outcome !== "ok").slice(0, 6);
  return (
    <section className="card">
      <h2><Link to="/calls?status=failed">Last failures</Link></h2>
      {failed.length === 0 && <p className="muted">None among the calls that are remembered.</p>}
      <ul className="ranking">
        {failed.map((call) => (
          <li key={call.id}>
            <Link to={`/calls?status=failed&call=${encodeURIComponent(call.id)}`}>{call.server}.{call.tool}</Link>
            <Outcome of={call.outcome} />
            <span>{ago(call.at)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Costs() {
  const groups = useAsked<Endpoints>("groups").data?.groups;
  if (!groups?.length) return null;
  const most = Math.max(1, ...groups.map((group) => group.size));
  return (
    <section className="card">
      <h2><Link to="/groups">Tokens of each group</Link></h2>
      <ul className="ranking">
        {groups.map((group) => (
          <li key={group.name}>
            <span>{group.name}</span>
            <Share of={group.size} most={most} />
            <span>≈ {many(tokens(group.size))}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
