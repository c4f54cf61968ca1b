import { useEffect, useState } from "react";
import { post } from "../api";
import { look, useAsked, useLive } from "../live";
import { Act, Ask, Empty, Fix, Happened, Health, Json, Mark, Problem, Spark, Tabs } from "../parts/bits";
import { BreakerCard } from "../parts/breakers";
import { CallGrid } from "../parts/callgrid";
import { Timeline } from "../parts/timeline";
import { ToolGrid } from "../parts/toolgrid";
import { Link, setQuery, useRoute } from "../route";
import type { Detail, Report, Server } from "../types";
import { ago, clock, healthOf, many, seconds, share, span, stateOf } from "../words";
import { Checks } from "./doctor";

const TABS: [string, string][] = [
  ["", "Why"], ["calls", "Calls"], ["tools", "Tools"], ["log", "Log"], ["config", "Config"], ["resilience", "Resilience"],
];

export function ServerPage({ name }: { name: string }) {
  const { query } = useRoute();
  const { overview } = useLive();
  const row = overview?.servers.find((each) => each.server === name);
  const [turn, setTurn] = useState(0);
  useEffect(() => setTurn((n) => n + 1), [row?.state, row?.why, row?.breaker, row?.restarts]);
  const { data, error, again } = useAsked<Detail>(`servers/${name}/detail`, turn);
  const [last, setLast] = useState<Detail | null>(null);
  useEffect(() => {
    if (data) setLast(data);
  }, [data]);
  const shown = data ?? last;
  const tab = query.get("tab") ?? "";
  if (error && error.status === 404) return <Empty title={`There is no server “${name}”.`}><Link to="/servers">All servers</Link></Empty>;
  if (error && !shown) return <Problem of={error} />;
  if (!shown) return <p className="muted wait">…</p>;
  const act = (way: string) => async () => {
    await post(way);
    again();
    await look();
  };
  const open = shown.breakers.some((each) => !each.tool && each.position !== "closed");
  return (
    <div className="page">
      <div className="bar">
        <h1>{name}</h1>
        <Health of={row ?? shown.status} />
        <span className="muted">{shown.status.transport}{shown.status.protocol && ` · ${shown.status.protocol}`}{shown.status.pid && ` · pid ${shown.status.pid}`}{shown.status.nodes.length > 0 && ` · owned by ${shown.status.nodes.join(", ")}`} · for {span(shown.status.since)}</span>
        <div className="actions">
          <Act act={act(`servers/${name}/restart`)}>Restart</Act>
          {shown.status.state === "disabled" ? (
            <Act act={act(`servers/${name}/enable`)}>Enable</Act>
          ) : (
            <Ask title={`Disable ${name}?`} text="Its calls are refused until you enable it, or the file is read again. What is under way is finished first." yes="Disable" act={act(`servers/${name}/disable`)}>
              {(ask) => <button type="button" onClick={ask}>Disable</button>}
            </Ask>
          )}
          {open ? (
            <Act act={act(`breakers/${name}/reset`)}>Reset breaker</Act>
          ) : (
            <Ask title={`Trip the breaker of ${name}?`} text="For a minute nothing is sent to it; calls are told so at once." yes="Trip" act={act(`breakers/${name}/trip`)}>
              {(ask) => <button type="button" onClick={ask}>Trip breaker</button>}
            </Ask>
          )}
        </div>
      </div>
      <Timeline changes={shown.timeline} now={shown.now} state={shown.status.state} />
      <Tabs label="About this server" tabs={TABS} chosen={tab} choose={(id) => setQuery({ tab: id })} />
      {tab === "" && <Why name={name} of={shown} />}
      {tab === "calls" && <CallGrid fixed={{ server: name }} />}
      {tab === "tools" && <ToolGrid server={name} />}
      {tab === "log" && <Log of={shown.status} />}
      {tab === "config" && <Definition of={shown} />}
      {tab === "resilience" && <Resilience name={name} of={shown} done={again} />}
    </div>
  );
}

function Why({ name, of }: { name: string; of: Detail }) {
  const [report, setReport] = useState<Report | null>(null);
  const { status, pulse } = of;
  const tail = status.stderr.trim().split("\n").slice(-12).join("\n");
  return (
    <>
      <section className={`card why ${healthOf(status)[0]}`} aria-label="Why">
        <h2>Why</h2>
        <p className="reason">{status.why || stateOf(status.state)[1]}</p>
        <Fix text={status.fix} />
        {status.last_error && status.state !== "ready" && <p><strong>Last error</strong> {status.last_error}</p>}
        {tail && status.state !== "ready" && (<><h3>Last lines of stderr</h3><pre tabIndex={0}>{tail}</pre></>)}
        {status.problems.length > 0 && (<><h3>Set aside</h3><ul>{status.problems.map((each) => <li key={each}>{each}</li>)}</ul></>)}
        <div className="actions">
          <Act act={async () => setReport(await post<Report>("doctor", { server: name }))}>Ask the doctor</Act>
        </div>
        {report && <Checks of={report} />}
      </section>
      <dl className="tiles">
        <div className="wide"><dt>Calls, last 30 minutes</dt><dd>{many(pulse.calls)}<Spark values={pulse.per_minute} errors={pulse.errors_per_minute} label={`${pulse.calls} calls`} /></dd></div>
        <div><dt>Failed</dt><dd className={pulse.errors ? "bad" : ""}>{share(pulse.errors, pulse.calls)}</dd></div>
        <div><dt>p50</dt><dd>{seconds(pulse.p50)}</dd></div>
        <div><dt>p95</dt><dd>{seconds(pulse.p95)}</dd></div>
        <div><dt>In flight</dt><dd>{status.in_flight}</dd></div>
        <div><dt>Restarts</dt><dd>{status.restarts}</dd></div>
        <div><dt>Tools</dt><dd>{status.tools}{status.stale && " (old)"}</dd></div>
      </dl>
      <section className="card">
        <h2>What happened to it</h2>
        {of.events.length === 0 && <p className="muted">Nothing yet.</p>}
        <ol className="happenings">
          {of.events.slice(0, 20).map((event) => (
            <li key={event.n}><time dateTime={new Date(event.at * 1000).toISOString()} title={ago(event.at)}>{clock(event.at)}</time> <Happened of={event} /></li>
          ))}
        </ol>
      </section>
    </>
  );
}

function Log({ of }: { of: Server }) {
  if (!of.stderr.trim()) return <Empty title="It has written nothing to stderr." command={`toolway logs ${of.server}`} />;
  return <pre className="log" tabIndex={0} aria-label="stderr">{of.stderr}</pre>;
}

function Definition({ of }: { of: Detail }) {
  return (
    <section className="card">
      <h2>In force</h2>
      <p className="muted">What differs from the usual. Secrets are not shown.</p>
      <Json of={of.definition} />
      {of.origins.length > 0 && (
        <>
          <h3>Where it is written</h3>
          <div className="tablebox bare" tabIndex={0} role="region" aria-label="Where it is written">
            <table>
              <thead><tr><th>Value</th><th>Is</th><th>From</th></tr></thead>
              <tbody>
                {of.origins.map((each) => (
                  <tr key={each.path}>
                    <td><code>{each.path}</code></td>
                    <td><code>{each.value}</code></td>
                    <td><code className="muted">{each.file}{each.line && `:${each.line}`}</code></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </section>
  );
}

function Resilience({ name, of, done }: { name: string; of: Detail; done: () => void }) {
  const own = of.breakers.find((each) => !each.tool);
  return (
    <div className="columns">
      <BreakerCard of={own ?? { server: name, tool: "", position: "closed", wait: 0, in_a_row: 0, ended: 0, failures: 0, openings: 0 }} done={done} />
      {of.breakers.filter((each) => each.tool).map((each) => <BreakerCard key={each.tool} of={each} done={done} />)}
      <section className="card">
        <h2>Waiting and retrying</h2>
        <dl className="facts">
          <dt>Waiting for a slot</dt><dd>{of.crowd.waiting}</dd>
          <dt>Retries under way</dt><dd>{of.crowd.retrying}</dd>
          <dt>Retries that the budget refused</dt><dd>{of.crowd.refused ? <Mark tone="warn">{of.crowd.refused}</Mark> : 0}</dd>
          <dt>Restarts</dt><dd>{of.status.restarts}</dd>
        </dl>
      </section>
    </div>
  );
}
