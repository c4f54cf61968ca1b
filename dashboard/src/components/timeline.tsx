// Timeline of a server's states in the last 24 hours.

import { formatTime, formatSpan, serverState } from "../format";

const DAY_S = 86_400;

export function Timeline({ changes, now, state }: {
  changes: { at: number; state: string; why: string }[];
  now: number;
  state: string;
}) {
  const first = changes[0]?.at ?? now;
  const start = Math.max(now - DAY_S, Math.min(first, now - 60));
  const parts = changes.map((each, at) => ({ ...each, end: changes[at + 1]?.at ?? now })).filter((each) => each.end > start);
  const length = now - start || 1;
  return (
    <figure className="timeline">
      <svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label={`States of the last ${formatSpan(length)}; now ${serverState(state)[1]}`}>
        {parts.map((each, at) => {
          const left = (1000 * (Math.max(each.at, start) - start)) / length;
          const width = Math.max(1.5, (1000 * (each.end - Math.max(each.at, start))) / length);
          return (
            <rect key={at} className={serverState(each.state)[0]} x={left} width={width} height="26">
              <title>{`${formatTime(each.at)}: ${serverState(each.state)[1]}. ${each.why}`}</title>
            </rect>
          );
        })}
      </svg>
      <figcaption>
        <span>{formatSpan(length)} ago</span>
        <span>now</span>
      </figcaption>
    </figure>
  );
}
