import { useAdmin, useLive } from "../live";
import { Alerts } from "../components/alerts";
import { Link, path } from "../route";
import type { AgentRow, RunRow } from "../types";
import { formatAge } from "../format";

/** What needs the user's attention: alerts, and runs that wait for an answer. */
export function AlertsPage() {
  const { overview } = useLive();
  const runs = useAdmin<{ runs: RunRow[] }>("runs?state=asks", overview?.now).data?.runs ?? [];
  const agents = useAdmin<{ runs: AgentRow[] }>("agents?state=asks", overview?.now).data?.runs ?? [];
  const waiting = [...agents.map((run) => ({ run, to: path("agents", run.id), title: run.prompt })), ...runs.filter((run) => !agents.some((each) => each.id === run.id)).map((run) => ({ run, to: path("runs", run.id), title: run.workflow }))];
  return (
    <div className="page">
      <h1>Alerts</h1>
      <Alerts />
      <section className="card" aria-label="Runs that wait for an answer">
        <h2>Runs that wait for an answer</h2>
        {waiting.length === 0 && <p className="muted">No workflow or agent is waiting for you.</p>}
        <ul className="alerts">
          {waiting.slice(0, 50).map(({ run, to, title }) => (
            <li key={run.id}>
              <div><p><Link to={to}>{title.slice(0, 120) || run.id}</Link> <small className="muted">{formatAge(run.created)}</small></p>{run.questions.map((each) => <p key={each.step}>{each.title}</p>)}</div>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
