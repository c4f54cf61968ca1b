// A breaker as the machine it is: three positions, where it stands, and what moves it.

import { post } from "../api";
import { look } from "../live";
import type { Breaker } from "../types";
import { seconds } from "../words";
import { Act, Mark } from "./bits";

const PLACES = ["closed", "open", "half_open"];
const WORDS: Record<string, string> = { closed: "closed", open: "open", half_open: "half open" };

export function BreakerCard({ of, done }: { of: Breaker; done: () => void }) {
  const way = of.tool ? `breakers/${of.server}/${encodeURIComponent(of.tool)}` : `breakers/${of.server}`;
  const act = (wish: string) => async () => {
    await post(`${way}/${wish}`);
    done();
    await look();
  };
  const name = of.tool ? `${of.server}.${of.tool}` : of.server;
  return (
    <section className="card breaker" aria-label={`Breaker of ${name}`}>
      <h2>{name}</h2>
      <ol className="machine" aria-label="Positions">
        {PLACES.map((place) => (
          <li key={place} aria-current={place === of.position ? "true" : undefined} className={place === of.position ? place : ""}>{WORDS[place]}</li>
        ))}
      </ol>
      <p>
        {of.position === "closed" && <Mark tone="good">calls pass</Mark>}
        {of.position === "open" && <Mark tone="bad">left alone for {seconds(of.wait)} more</Mark>}
        {of.position === "half_open" && <Mark tone="warn">being tried</Mark>}
      </p>
      <dl className="facts">
        <dt>Failures in a row</dt><dd>{of.in_a_row} of 5</dd>
        <dt>Last 10 seconds</dt><dd>{of.failures} of {of.ended} failed</dd>
        <dt>Opened lately</dt><dd>{of.openings} times</dd>
      </dl>
      <div className="actions">
        {of.position !== "open" && <Act act={act("trip")}>Trip</Act>}
        {of.position !== "closed" && <Act act={act("reset")}>Reset</Act>}
      </div>
    </section>
  );
}
