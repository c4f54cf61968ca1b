// What only a person can settle: a login, an outcome that nobody knows, a server that was given up.

import { remove } from "../api";
import { useAsked, useLive } from "../live";
import { Link, path } from "../route";
import type { Matter } from "../types";
import { ago } from "../words";
import { Act, Fix } from "./bits";

/** `few` shows the newest in short, and leaves out what the page says already. */
export function Matters({ few = false }: { few?: boolean }) {
  const { data, again } = useAsked<{ matters: Matter[] }>("matters", useLive().overview?.last_event);
  const all = (data?.matters ?? []).filter((each) => !few || each.kind !== "given-up").reverse();
  const most = few ? 3 : 50;
  if (!all.length && few) return null;
  return (
    <section className="card">
      <h2>Waiting for a person</h2>
      {!all.length && <p className="muted">Nothing: no login is needed, no server was given up, and every outcome is known.</p>}
      <ul className="matters">
        {all.slice(0, most).map((each) => (
          <li key={each.name}>
            <div>
              <p>
                <strong>{each.what}</strong> <small className="muted">{ago(each.at)}</small>
              </p>
              {!few && <p className="muted">{each.evidence}</p>}
              <Fix text={each.fix} />
              <p>
                {each.server && <Link to={path("servers", each.server)}>{each.server}</Link>}
                {each.call && (<>{" · "}<Link to={`/calls?call=${encodeURIComponent(each.call)}`}>the call</Link></>)}
              </p>
            </div>
            <Act act={async () => { await remove(`matters/${encodeURIComponent(each.name)}`); again(); }}>Done</Act>
          </li>
        ))}
      </ul>
      {all.length > most && <p>{few ? <Link to="/keys">and {all.length - most} more</Link> : `and ${all.length - most} more`}</p>}
    </section>
  );
}
