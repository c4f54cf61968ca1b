import { useMemo } from "react";
import { useAsked, useLive } from "../live";
import { Empty, Happened, Mark, Outcome, Share } from "../parts/bits";
import { BreakerCard } from "../parts/breakers";
import { Link, path } from "../route";
import type { Breaker } from "../types";
import { ago, many, outcomeOf, share } from "../words";

const CLASSES: [title: string, test: RegExp][] = [
  ["timeout", /TIMEOUT|SLOW|NO-ANSWER/],
  ["breaker open", /BREAKER/],
  ["overloaded", /OVERLOADED|CROWDED/],
  ["login", /AUTH|DENIED|TOKEN/],
  ["transport", /HTTP|STDIO|LINK|UNAVAILABLE|START|RESTART|CLOSED|MEMORY/],
  ["protocol", /PROTOCOL|FRAME|OUTPUT|ERA|ANSWER/],
  ["not found", /NOT-FOUND/],
  ["outcome unknown", /UNKNOWN/],
  ["tool error", /tool_error/],
  ["cancelled", /cancelled/],
];

export const classOf = (outcome: string) => CLASSES.find(([, test]) => test.test(outcome))?.[0] ?? "other";

export function Reliability() {
  const { overview, calls, events } = useLive();
  const { data, again } = useAsked<{ breakers: Breaker[] }>("breakers", overview?.now);
  const classes = useMemo(() => {
    const found = new Map<string, number>();
    for (const call of calls) if (call.outcome !== "ok") found.set(classOf(call.outcome), (found.get(classOf(call.outcome)) ?? 0) + 1);
    return [...found].sort((a, b) => b[1] - a[1]);
  }, [calls]);
  const failed = classes.reduce((sum, [, count]) => sum + count, 0);
  const servers = overview?.servers ?? [];
  const restless = servers.filter((server) => server.restarts > 0 || server.refused > 0 || server.waiting > 0).sort((a, b) => b.restarts - a.restarts);
  const open = data?.breakers.filter((each) => each.position !== "closed") ?? [];
  const others = data?.breakers.filter((each) => each.position === "closed") ?? [];
  return (
    <div className="page">
      <h1>Reliability</h1>
      <section>
        <h2>Breakers {open.length ? <Mark tone="bad">{open.length} open</Mark> : <Mark tone="good">all closed</Mark>}</h2>
        <div className="columns">
          {[...open, ...others].slice(0, 24).map((each) => <BreakerCard key={`${each.server}.${each.tool}`} of={each} done={again} />)}
        </div>
        {!open.length && !others.length && <p className="muted">No server and no tool has failed in the last 10 seconds.</p>}
      </section>
      <div className="columns">
        <section className="card">
          <h2>Why calls failed</h2>
          {!classes.length && <p className="muted">None of the calls that are remembered did.</p>}
          <ul className="ranking">
            {classes.map(([name, count]) => (
              <li key={name}>
                <span>{name}</span>
                <Share of={count} most={failed} />
                <span>{count}</span>
              </li>
            ))}
          </ul>
        </section>
        <section className="card">
          <h2>What was done about it</h2>
          <Actions />
        </section>
        <section className="card wide">
          <h2>Restarts, queues and budgets</h2>
          {!restless.length ? <Empty title="No server was restarted, and nobody waits." /> : (
            <div className="tablebox bare" tabIndex={0} role="region" aria-label="Restarts, queues and budgets"><table>
              <thead><tr><th>Server</th><th className="right">Restarts</th><th className="right">Waiting</th><th className="right">Retrying</th><th className="right">Refused by budget</th><th className="right">Failed</th></tr></thead>
              <tbody>
                {restless.slice(0, 50).map((server) => (
                  <tr key={server.server}>
                    <td><Link to={path("servers", server.server)}>{server.server}</Link></td>
                    <td className="right">{server.restarts}</td><td className="right">{server.waiting}</td><td className="right">{server.retrying}</td>
                    <td className="right">{server.refused}</td><td className="right">{share(server.pulse.errors, server.pulse.calls)}</td>
                  </tr>
                ))}
              </tbody>
            </table></div>
          )}
        </section>
        <section className="card wide">
          <h2><Link to="/events?kind=state">Changes of state</Link></h2>
          <ol className="happenings">
            {events.filter((event) => event.kind === "state" || event.kind === "change").slice(0, 12).map((event) => (
              <li key={event.n}><time>{ago(event.at)}</time> {event.server && <Link to={path("servers", event.server)}>{event.server}</Link>} <Happened of={event} /></li>
            ))}
          </ol>
        </section>
      </div>
    </div>
  );
}

/** What the hub did so that calls went well all the same. */
function Actions() {
  const { calls } = useLive();
  const rows: [string, number, string][] = [
    ["tried again, and it went well", calls.filter((call) => call.attempts > 1 && call.outcome === "ok").length, "/calls?retried=1"],
    ["tried again in vain", calls.filter((call) => call.attempts > 1 && call.outcome !== "ok").length, "/calls?retried=1&status=failed"],
    ["answered from the cache", calls.filter((call) => call.source === "cache").length, "/calls?source=cache"],
    ["shared the answer of another", calls.filter((call) => call.source === "shared").length, "/calls?source=shared"],
    ["left alone by a breaker", calls.filter((call) => call.outcome === "E-BREAKER-OPEN").length, "/calls?status=E-BREAKER-OPEN"],
    ["said honestly: outcome unknown", calls.filter((call) => call.executed === "unknown").length, "/calls?status=unknown"],
  ];
  return (
    <>
      <ul className="ranking">
        {rows.map(([title, count, to]) => <li key={title}><Link to={to}>{title}</Link><span>{many(count)}</span></li>)}
      </ul>
      <p className="muted">Of the last {many(calls.length)} calls{calls[0] && <>; the newest: <Outcome of={outcomeOf(calls[0].outcome)} /></>}</p>
    </>
  );
}
