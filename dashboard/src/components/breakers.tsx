// Circuit breaker: its three states, the current one, the counts that change it, and buttons to trip or reset it.

import { post } from "../api";
import { refresh } from "../live";
import type { Breaker } from "../types";
import { formatSeconds } from "../format";
import { ActionButton, Badge } from "./common";

const STATES = ["closed", "open", "half_open"];
const STATE_NAMES: Record<string, string> = { closed: "closed", open: "open", half_open: "half-open" };

export function BreakerCard({ breaker, done }: { breaker: Breaker; done: () => void }) {
  const basePath = breaker.tool ? `breakers/${breaker.server}/${encodeURIComponent(breaker.tool)}` : `breakers/${breaker.server}`;
  const run = (command: string) => async () => {
    await post(`${basePath}/${command}`);
    done();
    await refresh();
  };
  const name = breaker.tool ? `${breaker.server}.${breaker.tool}` : breaker.server;
  return (
    <section className="card breaker" aria-label={`Breaker of ${name}`}>
      <h2>{name}</h2>
      <ol className="machine" aria-label="States">
        {STATES.map((state) => (
          <li key={state} aria-current={state === breaker.position ? "true" : undefined} className={state === breaker.position ? state : ""}>{STATE_NAMES[state]}</li>
        ))}
      </ol>
      <p>
        {breaker.position === "closed" && <Badge tone="good">calls are sent</Badge>}
        {breaker.position === "open" && <Badge tone="bad">no calls for {formatSeconds(breaker.wait)}</Badge>}
        {breaker.position === "half_open" && <Badge tone="warn">trial call</Badge>}
      </p>
      <dl className="facts">
        <dt>Consecutive failures</dt><dd>{breaker.consecutive_failures} of 5</dd>
        <dt>Last 10 seconds</dt><dd>{breaker.failures} of {breaker.ended} failed</dd>
        <dt>Recently opened</dt><dd>{breaker.opened_count} times</dd>
      </dl>
      <div className="actions">
        {breaker.position !== "open" && <ActionButton action={run("trip")}>Trip</ActionButton>}
        {breaker.position !== "closed" && <ActionButton action={run("reset")}>Reset</ActionButton>}
      </div>
    </section>
  );
}
