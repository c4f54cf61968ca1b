// The life of a server as a strip: what it was, from when to when.

import { clock, span, stateOf } from "../words";

const DAY = 86_400;

export function Timeline({ changes, now, state }: {
  changes: { at: number; state: string; why: string }[];
  now: number;
  state: string;
}) {
  const first = changes[0]?.at ?? now;
  const begin = Math.max(now - DAY, Math.min(first, now - 60));
  const parts = changes.map((each, at) => ({ ...each, end: changes[at + 1]?.at ?? now })).filter((each) => each.end > begin);
  const length = now - begin || 1;
  return (
    <figure className="timeline">
      <svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label={`States of the last ${span(length)}; now ${stateOf(state)[1]}`}>
        {parts.map((each, at) => {
          const left = (1000 * (Math.max(each.at, begin) - begin)) / length;
          const width = Math.max(1.5, (1000 * (each.end - Math.max(each.at, begin))) / length);
          return (
            <rect key={at} className={stateOf(each.state)[0]} x={left} width={width} height="26">
              <title>{`${clock(each.at)}: ${stateOf(each.state)[1]}. ${each.why}`}</title>
            </rect>
          );
        })}
      </svg>
      <figcaption>
        <span>{span(length)} ago</span>
        <span>now</span>
      </figcaption>
    </figure>
  );
}
