// Waterfall of a call: one bar per phase, grouped by attempt.

import type { Attempt, CallDetail } from "../types";
import { formatSeconds } from "../format";
import { Outcome } from "./common";

const PHASES: Record<string, string> = {
  queue: "routing, and waiting for a free slot",
  pause: "pause the server asked for",
  turn: "waiting for a turn to write to the pipe",
  start: "waiting for the server to start",
  connect: "opening a connection",
  auth: "requesting a token",
  send: "sending the request",
  server: "running on the server",
  stream: "receiving the result",
  caller: "waiting for the client to answer a server request",
  retry: "waiting before the next attempt",
};

export function Waterfall({ call }: { call: CallDetail }) {
  if (!call.attempt_details.length) {
    return (
      <p className="muted">
        {call.source ? `Result from ${call.source}: no request was sent.` : "No attempt was made."}
      </p>
    );
  }
  const total = Math.max(call.seconds, ...call.attempt_details.map((each) => each.began + each.seconds), 1e-6);
  return (
    <div className="waterfall">
      {call.attempt_details.map((each) => (
        <Bars key={each.number} attempt={each} total={total} alone={call.attempt_details.length === 1} />
      ))}
      <div className="axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => <span key={part}>{formatSeconds(part * total)}</span>)}
      </div>
    </div>
  );
}

function Bars({ attempt, total, alone }: { attempt: Attempt; total: number; alone: boolean }) {
  const shown = attempt.phases.filter((phase) => phase.seconds > 0);
  return (
    <section aria-label={`attempt ${attempt.number}`}>
      {!alone && (
        <h4>
          Attempt {attempt.number} · {formatSeconds(attempt.seconds)} <Outcome of={attempt} />
        </h4>
      )}
      <ol>
        {shown.map((phase, at) => (
          <li key={at}>
            <span className="name" title={PHASES[phase.name] ?? phase.name}>{phase.name}</span>
            <span className="lane" aria-hidden="true">
              <span
                className={`bar phase-${phase.name}`}
                style={{
                  left: `${(100 * phase.began) / total}%`,
                  width: `max(2px, ${(100 * phase.seconds) / total}%)`,
                }}
              />
            </span>
            <span className="time">{formatSeconds(phase.seconds)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
