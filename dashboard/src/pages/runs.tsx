import { useState } from "react";
import { post } from "../api";
import { useAdmin, useLive } from "../live";
import { Badge, ConfirmDialog, Empty, ErrorBox } from "../components/common";
import { RunList, RunState, runTone } from "../components/run_list";
import { Link, path } from "../route";
import type { RunAction, RunDetail, RunRow, RunStep } from "../types";
import { formatAge, formatSeconds, formatTime } from "../format";

const STATES = ["asks", "running", "waiting", "undoing", "done", "failed", "undone", "cancelled", "stuck", "damaged"];

/** Workflow runs; runs that need an answer come first. */
export function Runs() {
  return (
    <RunList<{ enabled: boolean; runs: RunRow[] }>
      kind="runs"
      title="Runs"
      label="Runs"
      states={STATES}
      disabled={(
        <Empty title="This gateway has no workflows." command={'"toolway": {"workflows": ["flows/*.yaml"]}'}>
          <p className="prose">Add workflow files to the config file. Each workflow becomes a tool, and its runs show up here.</p>
        </Empty>
      )}
      empty={(isFiltered) => <Empty title={isFiltered ? "No run matches the filter." : "No runs yet."} />}
      head={<><th>Run</th><th>State</th><th>Question</th><th className="wideonly">Started by</th><th className="right">Started</th></>}
      row={(run) => (
        <>
          <td><Link to={path("runs", run.id)}>{run.id}</Link><br /><small className="muted">{run.workflow}</small></td>
          <td><RunState run={run} /></td>
          <td>{run.questions.map((each) => each.title).join("; ")}</td>
          <td className="wideonly">{run.principal}</td>
          <td className="right">{formatAge(run.created)}</td>
        </>
      )}
    />
  );
}

/** One run: its questions and actions, and its steps in the order of time. */
export function RunPage({ id }: { id: string }) {
  const { overview } = useLive();
  const { data, error, reload } = useAdmin<RunDetail>(`runs${path(id)}`, overview?.now);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <h1>{data.id}</h1>
      <p><Badge tone={runTone(data.state)}>{data.state}</Badge> {data.workflow}, started {formatAge(data.created)} by {data.principal}{data.due !== null && data.state === "waiting" && <>, continues at {formatTime(data.due)}</>}{data.workflow === "agent" && <> · <Link to={path("agents", data.id)}>conversation and costs</Link></>}</p>
      {data.questions.map((each) => <p key={each.step} className="prose" role="status"><strong>{each.title}</strong> <small className="muted">{each.step}{each.until !== null && <>, until {formatTime(each.until)}</>}</small></p>)}
      {data.actions.length > 0 && <div className="bar">{data.actions.map((each, at) => <RunActionButton key={at} kind="runs" run={data.id} action={each} done={reload} />)}</div>}
      {data.error && <div className="error" role="alert"><strong>{data.error}</strong></div>}
      <h2>Steps</h2>
      {data.steps.length === 0 ? <p className="muted">No steps yet.</p> : <Steps steps={data.steps} end={data.ended ?? overview?.now ?? data.created} />}
      {data.more && <p className="muted">Only the first steps are shown.</p>}
      {data.messages.length > 0 && (
        <>
          <h2>Messages</h2>
          <ul>{data.messages.map((each, at) => <li key={at}>{formatTime(each.at)}: {each.kind} {each.step} by {each.by}</li>)}</ul>
        </>
      )}
      <h2>Input</h2>
      <pre className="json" tabIndex={0}>{data.input || "none"}</pre>
      {data.output && <><h2>Output</h2><pre className="json" tabIndex={0}>{data.output}</pre></>}
    </div>
  );
}

/** Button of an action of a run, with the data that it needs, and a dialog that says what it will do. */
export function RunActionButton({ kind, run, action, done }: { kind: "runs" | "agents"; run: string; action: RunAction; done: () => void }) {
  const [text, setText] = useState("");
  const needsData = action.action === "answer";
  const mayHaveData = action.action === "settle" && action.body.happened === true;
  const mayHaveReason = action.action === "approve" && action.body.yes === false;
  const label = mayHaveReason ? `Reason for ${action.label}` : `Data as JSON for ${action.step}`;
  const perform = async () => {
    if (mayHaveReason) await post(`${kind}${path(run)}/${action.action}`, { ...action.body, note: text });
    else {
      const value: unknown = text.trim() ? JSON.parse(text) : undefined;
      const data = needsData ? { data: value ?? {} } : mayHaveData && value !== undefined ? { result: value } : {};
      await post(`${kind}${path(run)}/${action.action}`, { ...action.body, ...data });
    }
    setText("");
    done();
  };
  return (
    <span>
      {(needsData || mayHaveData) && <input type="text" aria-label={label} placeholder="Data as JSON" value={text} onChange={(event) => setText(event.target.value)} />}{" "}
      <ConfirmDialog
        title={action.label.endsWith("?") ? action.label : `${action.label}?`}
        text={action.effect}
        confirmLabel={action.action === "cancel" ? "Cancel the run" : "Confirm"}
        danger={action.action !== "approve" && action.action !== "answer"}
        action={perform}
        extra={mayHaveReason && <p><input type="text" aria-label={label} placeholder="Reason (optional)" value={text} onChange={(event) => setText(event.target.value)} /></p>}
      >
        {(open) => <button type="button" className={action.action === "approve" && action.body.yes === true ? "primary" : ""} onClick={open}>{action.label}</button>}
      </ConfirmDialog>
    </span>
  );
}

/** Timeline: one bar per attempt of a step, from its start to its outcome. */
export function Steps({ steps, end }: { steps: RunStep[]; end: number }) {
  const start = Math.min(...steps.map((each) => each.began));
  const total = Math.max(end - start, ...steps.map((each) => (each.ended ?? each.began) - start), 1e-6);
  return (
    <div className="tablebox" tabIndex={0} role="region" aria-label="Steps">
      <table>
        <thead><tr><th>Step</th><th>Call</th><th>Outcome</th><th className="wideonly">Time</th><th className="right">Seconds</th></tr></thead>
        <tbody>
          {steps.map((each, at) => (
            <tr key={at}>
              <td>{each.step}{each.attempt > 1 && <> <small className="muted">attempt {each.attempt}</small></>}{at > 0 && steps[at - 1]?.life !== each.life && <><br /><small className="muted">after a restart</small></>}</td>
              <td title={each.arguments}>{each.tool ? <Link to={`/calls?q=${encodeURIComponent(each.tool)}`}>{each.tool}</Link> : each.kind}{each.effect && <><br /><small className="muted">{each.effect}</small></>}</td>
              <td><Badge tone={runTone(each.state)}>{each.state}{each.via && ` (${each.via})`}</Badge><br /><small className="muted">{each.outcome.slice(0, 200)}</small></td>
              <td className="wideonly"><span className="waterfall"><span className="lane" aria-hidden="true"><span className="bar phase-server" style={{ left: `${(100 * (each.began - start)) / total}%`, width: `max(2px, ${(100 * ((each.ended ?? end) - each.began)) / total}%)` }} /></span></span></td>
              <td className="right">{each.ended === null ? "–" : formatSeconds(each.ended - each.began)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
