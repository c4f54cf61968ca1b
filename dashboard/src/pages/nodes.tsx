import { post } from "../api";
import { useAsked, useLive } from "../live";
import { Ask, Fix, Mark, Problem, Share } from "../parts/bits";
import { Link, path } from "../route";
import type { Cluster, Node } from "../types";
import { type Tone, many, span } from "../words";

const TONES: Record<string, Tone> = { ready: "good", draining: "warn", silent: "bad" };

/** The gateways of a cluster, and what each has taken on. */
export function Nodes() {
  const { overview } = useLive();
  const { data, error, again } = useAsked<Cluster>("nodes", overview?.now);
  if (error) return <Problem of={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const owned = data.nodes.reduce((sum, node) => sum + node.servers, 0);
  return (
    <div className="page">
      <h1>Nodes</h1>
      <dl className="tiles">
        <div><dt>Nodes</dt><dd>{data.nodes.length}</dd></div>
        <div><dt>Servers with an owner</dt><dd>{many(owned)}</dd></div>
        <div><dt>Without one</dt><dd className={data.unowned ? "warn" : ""}>{many(data.unowned)}</dd></div>
        <div><dt>NATS</dt><dd className={data.nats ? "" : "warn"}>{data.nats ? "connected" : "not connected"}</dd></div>
      </dl>
      {data.unowned > 0 && <p className="prose">Those without an owner are taken within seconds, unless no node has room or the right labels.</p>}
      {!data.nats && <Fix text="News reach this gateway a second later: see that NATS runs at an address of --cluster." />}
      <div className="tablebox" tabIndex={0} role="region" aria-label="Nodes">
        <table>
          <thead><tr><th>Node</th><th>State</th><th className="right">Owns</th><th className="wideonly">Labels</th><th className="wideonly">Address</th><th className="wideonly">Version</th><th className="right">Seen</th><th><span className="hidden">Actions</span></th></tr></thead>
          <tbody>{data.nodes.map((node) => <Row key={node.id} of={node} here={node.id === data.node} done={again} />)}</tbody>
        </table>
      </div>
      <p className="muted">Cluster {data.cluster}, tenant {data.tenant}. What each owns: <Link to="/servers?sort=owner">servers by their owner</Link>.</p>
    </div>
  );
}

function Row({ of, here, done }: { of: Node; here: boolean; done: () => void }) {
  const drain = async () => {
    await post(`nodes${path(of.id)}/drain`);
    done();
  };
  return (
    <tr>
      <td>{of.id}{here && <><br /><small className="muted">this one answers you</small></>}</td>
      <td><Mark tone={TONES[of.state] ?? "warn"}>{of.state}</Mark></td>
      <td className="right">{of.servers} / {of.capacity} <Share of={of.servers} most={of.capacity} /></td>
      <td className="wideonly">{of.labels.join(", ") || "–"}</td>
      <td className="wideonly">{of.address || "over NATS"}</td>
      <td className="wideonly">{of.version}</td>
      <td className="right">{span(of.seen)} ago</td>
      <td className="right">
        {of.state !== "draining" && (
          <Ask title={`Drain ${of.id}?`} text="It takes no more servers, and hands over those that it has when their calls have ended. Started again, it takes part as before." yes="Drain" act={drain}>
            {(ask) => <button type="button" onClick={ask}>Drain</button>}
          </Ask>
        )}
      </td>
    </tr>
  );
}
