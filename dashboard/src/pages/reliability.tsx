import { useMemo } from "react";
import { useAdmin, useLive } from "../live";
import { Empty, EventText, Badge, Health, Outcome, ProportionBar } from "../components/common";
import { BreakerCard } from "../components/breakers";
import { Link, path } from "../route";
import type { Breaker, Call } from "../types";
import { formatAge, formatCount, formatFailures, serverState } from "../format";

const CLASSES: [title: string, test: RegExp][] = [
  ["timeout", /TIMEOUT|SLOW|NO-ANSWER/],
  ["breaker open", /BREAKER/],
  ["overloaded", /OVERLOADED|CROWDED/],
  ["login", /AUTH|DENIED|TOKEN/],
  ["transport", /HTTP|STDIO|LINK|UNAVAILABLE|START|RESTART|CLOSED|MEMORY/],
  ["protocol", /PROTOCOL|FRAME|OUTPUT|ERA|ANSWER/],
  ["not found", /NOT-FOUND/],
  ["outcome unknown", /UNKNOWN/],
  ["cancelled", /cancelled/],
];

const failureClass = (call: Call) => CLASSES.find(([, test]) => test.test(call.code))?.[0] ?? (call.code ? "other" : call.outcome);

export function Reliability() {
  const { overview, calls, events } = useLive();
  const { data, reload } = useAdmin<{ breakers: Breaker[] }>("breakers", overview?.now);
  const classes = useMemo(() => {
    const found = new Map<string, number>();
    for (const call of calls) if (call.failed) found.set(failureClass(call), (found.get(failureClass(call)) ?? 0) + 1);
    return [...found].sort((a, b) => b[1] - a[1]);
  }, [calls]);
  const failed = classes.reduce((sum, [, count]) => sum + count, 0);
  const servers = overview?.servers ?? [];
  const down = servers.filter((server) => serverState(server.state)[0] === "bad");
  const busy = servers.filter((server) => server.restarts > 0 || server.retries_denied > 0 || server.queued > 0).sort((a, b) => b.restarts - a.restarts);
  const open = data?.breakers.filter((each) => each.position !== "closed") ?? [];
  const closed = data?.breakers.filter((each) => each.position === "closed") ?? [];
  return (
    <div className="page">
      <h1>Reliability</h1>
      {down.length > 0 && (
        <section className="card why bad" aria-label="Servers that are down">
          <h2>{down.length === 1 ? "1 server is" : `${down.length} servers are`} down</h2>
          <ul className="attention">{down.slice(0, 8).map((server) => <li key={server.server}><Health server={server} /><div><Link to={path("servers", server.server)}>{server.server}</Link> <span className="muted">{server.why}</span></div></li>)}</ul>
        </section>
      )}
      <section>
        <h2>Breakers {open.length ? <Badge tone="bad">{open.length} open</Badge> : <Badge tone="good">all closed</Badge>}</h2>
        <div className="columns">
          {[...open, ...closed].slice(0, 24).map((each) => <BreakerCard key={`${each.server}.${each.tool}`} breaker={each} done={reload} />)}
        </div>
        {!open.length && !closed.length && <p className="muted">No failed calls in the last 10 seconds.</p>}
      </section>
      <div className="columns">
        <section className="card">
          <h2>Causes of failed calls</h2>
          {!classes.length && <p className="muted">No failures in the stored calls.</p>}
          <ul className="ranking">
            {classes.map(([name, count]) => (
              <li key={name}>
                <span>{name}</span>
                <ProportionBar value={count} max={failed} />
                <span>{count}</span>
              </li>
            ))}
          </ul>
        </section>
        <section className="card">
          <h2>Recovery</h2>
          <Recovery />
        </section>
        <section className="card wide">
          <h2>Restarts, queues and retry budgets</h2>
          {!busy.length ? <Empty title="No restarts and no queued calls." /> : (
            <div className="tablebox bare" tabIndex={0} role="region" aria-label="Restarts, queues and retry budgets"><table>
              <thead><tr><th>Server</th><th className="right">Restarts</th><th className="right">Queued</th><th className="right">Retries</th><th className="right">Denied by budget</th><th className="right">Failed</th></tr></thead>
              <tbody>
                {busy.slice(0, 50).map((server) => (
                  <tr key={server.server}>
                    <td><Link to={path("servers", server.server)}>{server.server}</Link></td>
                    <td className="right">{server.restarts}</td><td className="right">{server.queued}</td><td className="right">{server.retries}</td>
                    <td className="right">{server.retries_denied}</td><td className="right">{formatFailures(server.minutes.errors, server.minutes.calls)}</td>
                  </tr>
                ))}
              </tbody>
            </table></div>
          )}
        </section>
        <section className="card wide">
          <h2><Link to="/events?kind=state">State changes</Link></h2>
          <ol className="events">
            {events.filter((event) => event.kind === "state" || event.kind === "change").slice(0, 12).map((event) => (
              <li key={event.n}><time>{formatAge(event.at)}</time> {event.server && <Link to={path("servers", event.server)}>{event.server}</Link>} <EventText event={event} /></li>
            ))}
          </ol>
        </section>
      </div>
    </div>
  );
}

/** Counts of what the hub did to avoid or limit failures. */
function Recovery() {
  const { calls } = useLive();
  const rows: [string, number, string][] = [
    ["succeeded after a retry", calls.filter((call) => call.attempts > 1 && call.outcome === "ok").length, "/calls?retried=1"],
    ["failed after retries", calls.filter((call) => call.attempts > 1 && call.failed).length, "/calls?retried=1&status=failed"],
    ["result from the cache", calls.filter((call) => call.source === "cache").length, "/calls?source=cache"],
    ["result shared with an identical call", calls.filter((call) => call.source === "shared").length, "/calls?source=shared"],
    ["rejected by an open breaker", calls.filter((call) => call.code === "E-BREAKER-OPEN").length, "/calls?status=E-BREAKER-OPEN"],
    ["outcome unknown", calls.filter((call) => call.outcome === "unknown").length, "/calls?status=unknown"],
  ];
  return (
    <>
      <ul className="ranking">
        {rows.map(([title, count, to]) => <li key={title}><Link to={to}>{title}</Link><span>{formatCount(count)}</span></li>)}
      </ul>
      <p className="muted">Last {formatCount(calls.length)} calls{calls[0] && <>; newest: <Outcome of={calls[0]} /></>}</p>
    </>
  );
}
