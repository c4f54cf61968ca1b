import { useEffect, useRef, useState } from "react";
import { ApiError, post, remove } from "../api";
import { refresh, useAdmin, useLive } from "../live";
import { ActionButton, ConfirmDialog, Empty, Hint, EventText, Health, JsonView, Badge, ErrorBox, Sparkline, Tabs } from "../components/common";
import { SaveButton } from "../components/save_dialog";
import { BreakerCard } from "../components/breakers";
import { CallTable } from "../components/call_table";
import { Timeline } from "../components/timeline";
import { ToolTable } from "../components/tool_table";
import { Link, go, setQuery, useRoute } from "../route";
import type { GatewayEvent, ServerDetail, Report, Server } from "../types";
import { formatAge, formatTime, serverHealth, formatCount, formatSeconds, failureTone, formatFailures, formatSpan, serverState } from "../format";
import { Checks } from "./doctor";

const TABS: [string, string][] = [
  ["", "Why"], ["calls", "Calls"], ["tools", "Tools"], ["log", "Log"], ["config", "Config"], ["resilience", "Resilience"],
];

export function ServerPage({ name }: { name: string }) {
  const { query } = useRoute();
  const { overview } = useLive();
  const row = overview?.servers.find((each) => each.server === name);
  const [refreshKey, setRefreshKey] = useState(0);
  useEffect(() => setRefreshKey((n) => n + 1), [row?.state, row?.why, row?.breaker, row?.restarts]);
  const { data, error, reload } = useAdmin<ServerDetail>(`servers/${name}/detail`, refreshKey);
  const [last, setLast] = useState<ServerDetail | null>(null);
  useEffect(() => {
    if (data) setLast(data);
  }, [data]);
  const shown = data ?? last;
  const tab = query.get("tab") ?? "";
  if (error && error.status === 404) return <Empty title={`Server “${name}” does not exist.`}><Link to="/servers">All servers</Link></Empty>;
  if (error && !shown) return <ErrorBox error={error} />;
  if (!shown) return <p className="muted wait">…</p>;
  const run = (adminPath: string) => async () => {
    await post(adminPath);
    reload();
    await refresh();
  };
  const removeServer = async () => {
    await remove(`config/servers/${name}`).catch(async (failed: ApiError) => {
      if (failed.status !== 404) throw failed;
      await remove(`servers/${name}`); // it was added until the next reload, and is not in the file
    });
    go("/servers"); // before the page asks for the server again
    await refresh();
  };
  const open = shown.breakers.some((each) => !each.tool && each.position !== "closed");
  return (
    <div className="page">
      <div className="bar">
        <h1>{name}</h1>
        <Health server={row ?? shown.status} />
        <span className="muted">{shown.status.transport}{shown.status.protocol && ` · ${shown.status.protocol}`}{shown.status.pid && ` · pid ${shown.status.pid}`}{shown.status.nodes.length > 0 && ` · owned by ${shown.status.nodes.join(", ")}`} · for {formatSpan(shown.status.since)}</span>
        <div className="actions">
          <ActionButton action={run(`servers/${name}/restart`)}>Restart</ActionButton>
          {shown.status.state === "disabled" ? (
            <ActionButton action={run(`servers/${name}/enable`)}>Enable</ActionButton>
          ) : (
            <ConfirmDialog title={`Disable ${name}?`} text="Its calls are rejected until you enable it or reload the config file. Running calls finish first." confirmLabel="Disable" action={run(`servers/${name}/disable`)}>
              {(open) => <button type="button" onClick={open}>Disable</button>}
            </ConfirmDialog>
          )}
          <ConfirmDialog title={`Remove ${name}?`} text="Its entry leaves the config file, its process stops, and clients lose its tools. You can roll this back on the Config page." confirmLabel="Remove" typed={name} action={removeServer}>
            {(open) => <button type="button" onClick={open}>Remove</button>}
          </ConfirmDialog>
          {open ? (
            <ActionButton action={run(`breakers/${name}/reset`)}>Reset breaker</ActionButton>
          ) : (
            <ConfirmDialog title={`Trip the breaker of ${name}?`} text="Its calls are rejected for one minute." confirmLabel="Trip" action={run(`breakers/${name}/trip`)}>
              {(open) => <button type="button" onClick={open}>Trip breaker</button>}
            </ConfirmDialog>
          )}
        </div>
      </div>
      <Timeline changes={shown.timeline} now={shown.now} state={shown.status.state} />
      <Tabs label="About this server" tabs={TABS} selected={tab} onSelect={(id) => setQuery({ tab: id })} />
      {tab === "" && <Why name={name} detail={shown} />}
      {tab === "calls" && <CallTable fixed={{ server: name }} />}
      {tab === "tools" && <ToolTable server={name} />}
      {tab === "log" && <Log name={name} status={shown.status} />}
      {tab === "config" && <><Settings name={name} detail={shown} done={reload} /><Definition detail={shown} /></>}
      {tab === "resilience" && <Resilience name={name} detail={shown} done={reload} />}
    </div>
  );
}

function Why({ name, detail }: { name: string; detail: ServerDetail }) {
  const [report, setReport] = useState<Report | null>(null);
  const { status, minutes } = detail;
  const tail = status.stderr.trim().split("\n").slice(-12).join("\n");
  return (
    <>
      <section className={`card why ${serverHealth(status)[0]}`} aria-label="Why">
        <h2>Why</h2>
        <p className="reason">{status.why || serverState(status.state)[1]}</p>
        <Hint text={status.hint} />
        {status.last_error && status.state !== "ready" && !status.why.includes(status.last_error) && <p><strong>Last error</strong> {status.last_error}</p>}
        {tail && status.state !== "ready" && (<><h3>Last lines of stderr</h3><pre tabIndex={0}>{tail}</pre></>)}
        {status.problems.length > 0 && (<><h3>Ignored items</h3><ul>{status.problems.map((each) => <li key={each}>{each}</li>)}</ul></>)}
        <div className="actions">
          <ActionButton action={async () => setReport(await post<Report>("doctor", { server: name }))}>Run doctor</ActionButton>
        </div>
        {report && <Checks report={report} />}
      </section>
      <dl className="tiles">
        <div className="wide"><dt>Calls, last 30 minutes</dt><dd>{formatCount(minutes.calls)}<Sparkline values={minutes.per_minute} errors={minutes.errors_per_minute} label={`${minutes.calls} calls`} /></dd></div>
        <div><dt>Failed</dt><dd className={failureTone(minutes.errors, minutes.calls)}>{formatFailures(minutes.errors, minutes.calls)}</dd></div>
        <div><dt>p50</dt><dd>{formatSeconds(minutes.p50)}</dd></div>
        <div><dt>p95</dt><dd>{formatSeconds(minutes.p95)}</dd></div>
        <div><dt>In flight</dt><dd>{status.in_flight}</dd></div>
        <div><dt>Restarts</dt><dd>{status.restarts}</dd></div>
        <div><dt>Tools</dt><dd>{status.tools}{status.stale && " (from cache)"}</dd></div>
      </dl>
      <section className="card">
        <h2>Events</h2>
        {detail.events.length === 0 && <p className="muted">No events yet.</p>}
        <ol className="events">
          {groupEvents(detail.events).slice(0, 20).map(({ event, times }) => (
            <li key={event.n}><time dateTime={new Date(event.at * 1000).toISOString()} title={formatAge(event.at)}>{formatTime(event.at)}</time> <EventText event={event} />{times > 1 && <small className="muted">{times} times</small>}</li>
          ))}
        </ol>
      </section>
    </>
  );
}

/** Join events with the same state, or without a state with the same text: a server that restarts again and again has one line for each. */
function groupEvents(events: GatewayEvent[]): { event: GatewayEvent; times: number }[] {
  const found = new Map<string, { event: GatewayEvent; times: number }>();
  for (const event of events) {
    const key = `${event.kind} ${event.state || event.text}`;
    const known = found.get(key);
    if (known) known.times += 1;
    else found.set(key, { event, times: 1 });
  }
  return [...found.values()];
}

const FOLLOW_INTERVAL_MS = 1000;

/** Last lines of stderr. They follow the server until the user pauses them. */
function Log({ name, status }: { name: string; status: Server }) {
  const [follows, setFollows] = useState(true);
  const [tick, setTick] = useState(0);
  const box = useRef<HTMLPreElement>(null);
  const [text, setText] = useState(status.stderr);
  const { data } = useAdmin<Server>(`servers/${name}`, tick);
  useEffect(() => {
    if (!follows) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setTick((n) => n + 1), FOLLOW_INTERVAL_MS);
    return () => clearInterval(timer);
  }, [follows]);
  useEffect(() => {
    if (data && follows) setText(data.stderr);
  }, [data, follows]);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follows]);
  return (
    <>
      <div className="bar">
        <button type="button" aria-pressed={follows} onClick={() => setFollows(!follows)}>{follows ? "Pause" : "Follow"}</button>
        <span className="muted">The last lines of stderr{follows ? ", updated every second" : ", paused"}. In a terminal: <code>toolway logs {name} -f</code></span>
      </div>
      {text.trim() ? <pre ref={box} className="log follow" tabIndex={0} aria-label="stderr">{text}</pre> : <Empty title="No output on stderr." />}
    </>
  );
}

const DURATIONS: [key: string, title: string][] = [["timeout", "Timeout of a call"], ["startTimeout", "Timeout of a start"], ["idleTimeout", "Stop after idle time"]];

/** Form for the settings that can be changed in the config file. */
function Settings({ name, detail, done }: { name: string; detail: ServerDetail; done: () => void }) {
  const written = Object.fromEntries(detail.origins.map((each) => [each.path, each.value.replace(/^"|"$/g, "")]));
  const [changes, setChanges] = useState<Record<string, string | boolean | null>>({});
  const change = (key: string, value: string | boolean | null) => setChanges({ ...changes, [key]: value });
  const text = (key: string) => (key in changes ? String(changes[key] ?? "") : (written[key] ?? ""));
  const checked = (key: string, fallback: boolean) => (key in changes ? changes[key] === true : key in written ? written[key] === "true" : fallback);
  if (detail.origins.length === 0) return null;
  return (
    <section className="card" aria-label="Edit">
      <h2>Edit</h2>
      <div className="form">
        <label className="inline"><input type="checkbox" checked={checked("enabled", detail.status.state !== "disabled")} onChange={(event) => change("enabled", event.target.checked)} /> Enabled</label>
        <label className="inline"><input type="checkbox" checked={checked("lazy", false)} onChange={(event) => change("lazy", event.target.checked)} /> Start on the first call</label>
        {DURATIONS.map(([key, title]) => (
          <div key={key} className="field">
            <label htmlFor={`edit-${key}`}>{title} <small>for example 30s or 5m; empty: the default</small></label>
            <input id={`edit-${key}`} type="text" value={text(key)} onChange={(event) => change(key, event.target.value.trim() || null)} />
          </div>
        ))}
      </div>
      <div className="actions">
        <SaveButton title={`Change ${name}?`} disabled={!Object.keys(changes).length} change={() => ({ method: "post", path: `config/servers/${name}`, body: changes })} done={async () => { setChanges({}); done(); await refresh(); }}>Review and save</SaveButton>
        <span className="muted">The server restarts if necessary. To change its command, address, or secrets, use a terminal: <code>toolway edit {name}</code></span>
      </div>
    </section>
  );
}

function Definition({ detail }: { detail: ServerDetail }) {
  return (
    <section className="card">
      <h2>Current settings</h2>
      <p className="muted">Only settings that differ from their defaults. Secrets are hidden.</p>
      <JsonView value={detail.definition} />
      {detail.origins.length > 0 && (
        <>
          <h3>Origin</h3>
          <div className="tablebox bare" tabIndex={0} role="region" aria-label="Origin">
            <table>
              <thead><tr><th>Setting</th><th>Value</th><th>File</th></tr></thead>
              <tbody>
                {detail.origins.map((each) => (
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

function Resilience({ name, detail, done }: { name: string; detail: ServerDetail; done: () => void }) {
  const own = detail.breakers.find((each) => !each.tool);
  return (
    <div className="columns">
      <BreakerCard breaker={own ?? { server: name, tool: "", position: "closed", wait: 0, consecutive_failures: 0, ended: 0, failures: 0, opened_count: 0 }} done={done} />
      {detail.breakers.filter((each) => each.tool).map((each) => <BreakerCard key={each.tool} breaker={each} done={done} />)}
      <section className="card">
        <h2>Queue and retries</h2>
        <dl className="facts">
          <dt>Calls queued for a slot</dt><dd>{detail.load.queued}</dd>
          <dt>Retries in flight</dt><dd>{detail.load.retries}</dd>
          <dt>Retries denied by the budget</dt><dd>{detail.load.retries_denied ? <Badge tone="warn">{detail.load.retries_denied}</Badge> : 0}</dd>
          <dt>Restarts</dt><dd>{detail.status.restarts}</dd>
        </dl>
      </section>
    </div>
  );
}
