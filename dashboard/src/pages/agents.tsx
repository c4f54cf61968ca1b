import { useAdmin, useLive } from "../live";
import { Badge, Copyable, Empty, ErrorBox, FoldedText, ProportionBar, Tabs } from "../components/common";
import { Link, path, setQuery, useRoute } from "../route";
import type { AgentDetail, AgentMessage, AgentRow, RunStep } from "../types";
import { type Tone, formatAge, formatCount, formatSeconds, formatTime, formatUsd } from "../format";
import { RunList, RunState, runTone } from "../components/run_list";
import { RunActionButton, Steps } from "./runs";

const STATES = ["asks", "running", "waiting", "done", "failed", "cancelled", "stuck", "damaged"];
const EXECUTED: Record<string, Tone> = { yes: "good", no: "idle", unknown: "warn" };

/** Agent runs; runs that need approval come first. */
export function Agents() {
  return (
    <RunList<{ enabled: boolean; runs: AgentRow[]; problem: string }>
      kind="agents"
      title="Agents"
      label="Agent runs"
      states={STATES}
      note={(data) => data.problem && <div className="error" role="alert">{data.problem}</div>}
      empty={(isFiltered) => isFiltered ? <Empty title="No run matches the filter." /> : (
        <Empty title="No agent runs yet." command={'toolway agent run "…" --model openai:gpt-5 --tools "github.*" --budget 0.50usd'}>
          <p className="prose">Runs of toolway agent on this machine, and of agents in workflows, show up here with their conversation and costs. You can approve their calls here too.</p>
        </Empty>
      )}
      head={<><th>Task</th><th>State</th><th className="wideonly">Model</th><th className="right wideonly">Turns</th><th className="right wideonly">Calls</th><th className="right">Cost</th><th className="right">Started</th></>}
      row={(run) => (
        <>
          <td><Link to={path("agents", run.id)}>{run.prompt.slice(0, 120) || run.id}</Link><br /><small className="muted">{run.id}</small></td>
          <td><RunState run={run} />{run.questions.map((each) => <small key={each.step} className="cut muted question">{each.title}</small>)}</td>
          <td className="wideonly">{run.model}</td>
          <td className="right wideonly">{run.turns}</td>
          <td className="right wideonly">{run.calls}</td>
          <td className="right">{formatUsd(run.usd)}<br /><small className="muted">{formatCount(run.input_tokens + run.output_tokens)} tokens</small></td>
          <td className="right">{formatAge(run.created)}</td>
        </>
      )}
    />
  );
}

/** One agent run: calls that need approval, budget, conversation and timeline. */
export function AgentPage({ id }: { id: string }) {
  const { overview } = useLive();
  const { query } = useRoute();
  const { data, error, reload } = useAdmin<AgentDetail>(`agents${path(id)}`, overview?.now);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const tab = query.get("tab") ?? "conversation";
  const runActions = data.actions.filter((each) => !data.questions.some((question) => question.step === each.step));
  return (
    <div className="page">
      <h1>{data.prompt.slice(0, 120) || data.id}</h1>
      <div className="bar">
        <Badge tone={runTone(data.state)}>{data.state}</Badge>
        <span>{data.model}, started {formatAge(data.created)} by {data.principal} <small className="muted">{data.id}</small></span>
        <span className="actions">{runActions.map((each, at) => <RunActionButton key={at} kind="agents" run={data.id} action={each} done={reload} />)}</span>
      </div>
      {data.questions.map((question) => (
        <section key={question.step} className="card why warn" aria-label={`Approval of ${question.tool || question.step}`}>
          <h2>{question.kind === "approve" ? <>The model wants to call {question.tool}</> : question.title}{question.effect && <> <small className="muted">effect: {question.effect}</small></>}</h2>
          {question.title.includes(": ") && question.kind === "approve" && !question.title.startsWith(question.tool) && <p>{question.title.slice(0, question.title.indexOf(": "))}</p>}
          {question.arguments && <FoldedText text={question.arguments} />}
          <div className="actions">{data.actions.filter((each) => each.step === question.step).map((each) => <RunActionButton key={each.label} kind="agents" run={data.id} action={each} done={reload} />)}</div>
          {data.resume && <p><small className="muted">If the command that started the run has ended, continue it after your answer: </small><Copyable text={data.resume} /></p>}
        </section>
      ))}
      {data.error && <div className="error" role="alert"><strong>{data.error}</strong></div>}
      <Budget run={data} />
      <Tabs label="Parts of the run" tabs={[["conversation", "Conversation"], ["timeline", "Timeline"], ["settings", "Settings"]]} selected={tab} onSelect={(next) => setQuery({ tab: next === "conversation" ? "" : next })} />
      {tab === "conversation" && <ol className="conversation" aria-label="Conversation">{data.conversation.map((each, at) => <Message key={at} message={each} />)}</ol>}
      {tab === "timeline" && (data.steps.length === 0 ? <p className="muted">No steps yet.</p> : <Steps steps={data.steps.map((each) => withTurn(each, data.conversation))} end={data.ended ?? overview?.now ?? data.created} />)}
      {tab === "settings" && (
        <dl className="facts">
          <dt>Tools</dt><dd>{data.tools.join(", ")}</dd>
          <dt>Approval</dt><dd>{data.approve}</dd>
          <dt>Untrusted servers</dt><dd>{data.untrusted.join(", ") || "none"}</dd>
          <dt>Executed by</dt><dd>{data.place === "gateway" ? "this gateway" : "toolway agent"}</dd>
          <dt>Instructions</dt><dd>{data.instructions ? <FoldedText text={data.instructions} /> : "none"}</dd>
          {data.messages.length > 0 && <><dt>Answers from users</dt><dd>{data.messages.map((each, at) => <div key={at}>{formatTime(each.at)}: {each.kind} {each.step} by {each.by}</div>)}</dd></>}
        </dl>
      )}
      {data.more && <p className="muted">Only the first part is shown.</p>}
    </div>
  );
}

const formatUnit = (unit: string, value: number | null) =>
  unit === "usd" ? formatUsd(value) : unit === "seconds" ? formatSeconds(value) : value === null ? "–" : formatCount(value);

/** What the run has used of each limit. */
function Budget({ run }: { run: AgentDetail }) {
  return (
    <dl className="tiles" aria-label="Budget">
      {run.budget.map(({ unit, used, limit }) => (
        <div key={unit}>
          <dt>{unit === "usd" ? "cost" : unit === "seconds" ? "time" : unit}</dt>
          <dd>{formatUnit(unit, used)}</dd>
          <dd><small className="muted">{limit === null ? "no limit" : <><ProportionBar value={used ?? 0} max={limit} /> of {formatUnit(unit, limit)}</>}</small></dd>
        </div>
      ))}
    </dl>
  );
}

function Message({ message }: { message: AgentMessage }) {
  if (message.role === "tool") {
    return (
      <li className="tool">
        <h2>{message.tool || "tool"} <Badge tone={EXECUTED[message.executed] ?? "warn"}>executed: {message.executed}</Badge>{message.approved_by && <small className="muted"> approved by {message.approved_by}</small>} <small className="muted">{message.step}</small></h2>
        {message.content ? <FoldedText text={message.content} /> : <p className="muted">{message.executed === "unknown" ? "No outcome yet." : "Empty result."}</p>}
      </li>
    );
  }
  return (
    <li className={message.role}>
      <h2>{message.role === "user" ? "Task" : "Model"} {message.model && <small className="muted">{message.model}, {formatCount(message.input_tokens)} + {formatCount(message.output_tokens)} tokens, {formatUsd(message.usd)}</small>} <small className="muted">{message.step}</small></h2>
      {message.error && <p className="bad">{message.error}</p>}
      {message.content && <FoldedText text={message.content} />}
      {message.tool_calls.map((call, at) => <div key={at} className="toolcall"><span aria-hidden="true">→</span> <strong>{call.tool}</strong> <FoldedText text={call.arguments} /></div>)}
    </li>
  );
}

/** Return a step of the timeline; an answer of the model with its calls or the begin of its text. */
function withTurn(step: RunStep, conversation: AgentMessage[]): RunStep {
  if (!step.step.startsWith("model/")) return step;
  const answer = conversation.find((each) => each.step === step.step);
  const calls = answer?.tool_calls.map((each) => `→ ${each.tool}`).join(", ");
  return { ...step, kind: "model", effect: "", outcome: answer?.error || calls || answer?.content || "" };
}
