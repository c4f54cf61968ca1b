// Alerts: conditions that an administrator must resolve, such as a required login, an unknown outcome or a failed server.

import { remove } from "../api";
import { useAdmin, useLive } from "../live";
import { Link, path } from "../route";
import type { Alert } from "../types";
import { formatAge } from "../format";
import { ActionButton, Hint } from "./common";

/** List of open alerts. `compact` shows only the newest, in short, without alerts that the home page shows elsewhere. */
export function Alerts({ compact = false }: { compact?: boolean }) {
  const { data, reload } = useAdmin<{ alerts: Alert[] }>("alerts", useLive().overview?.last_event);
  const all = (data?.alerts ?? []).filter((each) => !compact || each.kind !== "server-down").reverse();
  const limit = compact ? 3 : 50;
  if (!all.length && compact) return null;
  return (
    <section className="card">
      <h2>{compact ? <Link to="/alerts">Alerts</Link> : "Open"}</h2>
      {!all.length && <p className="muted">All clear: no logins needed, no servers down, no unknown outcomes.</p>}
      <ul className="alerts">
        {all.slice(0, limit).map((each) => (
          <li key={each.name}>
            <div>
              <p>
                <strong>{each.message}</strong> <small className="muted">{formatAge(each.at)}</small>
              </p>
              {!compact && <p className="muted">{each.detail}</p>}
              <Hint text={each.hint} />
              <p>
                {each.server && <Link to={path("servers", each.server)}>{each.server}</Link>}
                {each.call && (<>{" · "}<Link to={`/calls?call=${encodeURIComponent(each.call)}`}>call</Link></>)}
              </p>
            </div>
            <ActionButton action={async () => { await remove(`alerts/${encodeURIComponent(each.name)}`); reload(); }}>Resolve</ActionButton>
          </li>
        ))}
      </ul>
      {all.length > limit && <p>{compact ? <Link to="/alerts">and {all.length - limit} more</Link> : `and ${all.length - limit} more`}</p>}
    </section>
  );
}
