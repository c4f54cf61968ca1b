import { post } from "../api";
import { useAdmin, useLive } from "../live";
import { Badge, ConfirmDialog, Empty, ErrorBox } from "../components/common";
import { Link, path } from "../route";
import type { PinDeviation, Pins } from "../types";
import { formatAge, formatCount } from "../format";

const REASONS: Record<string, string> = {
  changed: "It changed since it was pinned.",
  new: "New since the first time we saw this server.",
  "not accepted": "Nobody has accepted it yet.",
  suspicious: "It contains hidden text or a disguised command.",
};

/** Tools that differ from their pins, each with a diff and a button to accept what is shown. */
export function Definitions() {
  const { overview } = useLive();
  const { data, error, reload } = useAdmin<Pins>("pins", overview?.last_event);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const held = data.deviations.filter((each) => each.on_hold).length;
  const pinned = data.servers.reduce((sum, each) => sum + each.pins, 0);
  return (
    <div className="page">
      <h1>Definitions</h1>
      <dl className="tiles">
        <div><dt>Pinned</dt><dd>{formatCount(pinned)}</dd></div>
        <div><dt>On hold</dt><dd className={held ? "warn" : ""}>{formatCount(held)}</dd></div>
        <div><dt>In use</dt><dd>{formatCount(data.deviations.length - held)}</dd></div>
      </dl>
      {!data.deviations.length && <Empty title={data.enabled ? "No tool has changed." : "This gateway does not compare tool definitions."} />}
      {data.deviations.map((each) => <Deviation key={`${each.name} ${each.digest}`} deviation={each} done={reload} />)}
    </div>
  );
}

function Deviation({ deviation, done }: { deviation: PinDeviation; done: () => void }) {
  const accept = async () => {
    const { server, kind, item, digest } = deviation;
    await post("pins/accept", { server, kind, item, digest });
    done();
  };
  return (
    <section className="card" aria-label={deviation.name}>
      <div className="bar">
        <h2>{deviation.name} <Badge tone={deviation.on_hold ? "bad" : "warn"}>{deviation.on_hold ? "on hold" : "in use"}</Badge></h2>
        <ConfirmDialog
          title={`Accept ${deviation.name}?`}
          text={`Clients will see the definition shown here, and its calls go through. This does not accept any other definition. SHA-256 ${deviation.digest}`}
          confirmLabel="Accept"
          action={accept}
        >
          {(open) => <button type="button" onClick={open}>Accept</button>}
        </ConfirmDialog>
      </div>
      <p>{REASONS[deviation.reason] ?? deviation.reason} <small className="muted">{formatAge(deviation.since)}, <Link to={path("servers", deviation.server)}>{deviation.server}</Link></small></p>
      {deviation.findings.length > 0 && <ul>{deviation.findings.map((each) => <li key={each}>{each}</li>)}</ul>}
      {!deviation.complete && <p className="muted">The definition is too large to keep. Compare it on the server.</p>}
      <pre className="diff" tabIndex={0}>
        {deviation.changes.flatMap((change) => [
          change.old !== null && <span key={`- ${change.path}`} className="removed">{`- ${change.path}  ${change.old}\n`}</span>,
          change.new !== null && <span key={`+ ${change.path}`} className="added">{`+ ${change.path}  ${change.new}\n`}</span>,
        ])}
      </pre>
    </section>
  );
}
