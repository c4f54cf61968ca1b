import { Badge, ErrorBox } from "./common";
import { useAdmin, useLive } from "../live";
import { setQuery, useRoute } from "../route";
import { type Tone } from "../format";

const TONES: Record<string, Tone> = { done: "good", asks: "warn", undone: "warn", failed: "bad", stuck: "bad", damaged: "bad", unknown: "warn", not_executed: "warn", begun: "warn" };
export const runTone = (state: string): Tone => TONES[state] ?? "idle";

/** State of a run in a list, with the code of its error. */
export function RunState({ run }: { run: { state: string; code: string } }) {
  return <><Badge tone={runTone(run.state)}>{run.state}</Badge>{run.code && <> <code>{run.code}</code></>}</>;
}

/** Page with a list of runs, of workflows or agents: a filter by text and state, and a table of the runs. */
export function RunList<Data extends { enabled: boolean; runs: { id: string }[] }>({ kind, title, label, states, head, row, note, empty, disabled }: {
  kind: "runs" | "agents";
  title: string;
  label: string;
  states: string[];
  head: React.ReactNode;
  row: (run: Data["runs"][number]) => React.ReactNode;
  note?: (data: Data) => React.ReactNode;
  empty: (isFiltered: boolean) => React.ReactNode;
  disabled?: React.ReactNode;
}) {
  const { query } = useRoute();
  const { overview } = useLive();
  const state = query.get("state") ?? "";
  const text = query.get("q") ?? "";
  const { data, error } = useAdmin<Data>(`${kind}?state=${encodeURIComponent(state)}&q=${encodeURIComponent(text)}`, overview?.now);
  const isDisabled = disabled !== undefined && data?.enabled === false;
  return (
    <div className="page">
      <h1>{title}</h1>
      {error && <ErrorBox error={error} />}
      {data && note?.(data)}
      {isDisabled && disabled}
      {!isDisabled && (
        <div className="bar">
          <input type="search" aria-label={`Filter ${label.toLowerCase()}`} placeholder="Filter" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
          <select aria-label="State" value={state} onChange={(event) => setQuery({ state: event.target.value })}>
            <option value="">all states</option>
            {states.map((each) => <option key={each}>{each}</option>)}
          </select>
        </div>
      )}
      {!isDisabled && data?.runs.length === 0 && empty(Boolean(state || text))}
      {data && data.runs.length > 0 && (
        <div className="tablebox" tabIndex={0} role="region" aria-label={label}>
          <table>
            <thead><tr>{head}</tr></thead>
            <tbody>{data.runs.map((run) => <tr key={run.id}>{row(run)}</tr>)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}
