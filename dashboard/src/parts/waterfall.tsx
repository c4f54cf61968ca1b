// Where the time of a call went: one bar for each thing that it waited for, a row for each try.

import type { Try, WholeCall } from "../types";
import { seconds } from "../words";
import { Outcome } from "./bits";

const WORDS: Record<string, string> = {
  queue: "decided, and waited for a slot",
  pause: "the server asked for a pause",
  turn: "waited for its turn at the pipe",
  start: "waited for the server to start",
  connect: "opened a connection",
  auth: "got a token",
  send: "sent",
  server: "the server worked",
  stream: "the answer came in",
  caller: "the caller was asked",
  retry: "waited before the next try",
};

export function Waterfall({ call }: { call: WholeCall }) {
  if (!call.tries.length) {
    return (
      <p className="muted">
        {call.source ? `Answered from ${call.source}: no server was asked.` : "It never came to a try."}
      </p>
    );
  }
  const total = Math.max(call.seconds, ...call.tries.map((each) => each.began + each.seconds), 1e-6);
  return (
    <div className="waterfall">
      {call.tries.map((each) => (
        <Bars key={each.number} of={each} total={total} alone={call.tries.length === 1} />
      ))}
      <div className="axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => <span key={part}>{seconds(part * total)}</span>)}
      </div>
    </div>
  );
}

function Bars({ of, total, alone }: { of: Try; total: number; alone: boolean }) {
  const shown = of.phases.filter((phase) => phase.seconds > 0);
  return (
    <section aria-label={`try ${of.number}`}>
      {!alone && (
        <h4>
          Try {of.number} · {seconds(of.seconds)} <Outcome of={of.outcome} />
        </h4>
      )}
      <ol>
        {shown.map((phase, at) => (
          <li key={at}>
            <span className="name" title={WORDS[phase.name] ?? phase.name}>{phase.name}</span>
            <span className="lane" aria-hidden="true">
              <span
                className={`bar phase-${phase.name}`}
                style={{
                  left: `${(100 * phase.began) / total}%`,
                  width: `max(2px, ${(100 * phase.seconds) / total}%)`,
                }}
              />
            </span>
            <span className="time">{seconds(phase.seconds)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
