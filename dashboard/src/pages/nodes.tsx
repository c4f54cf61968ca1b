import { post } from "../api";
import { useAdmin, useLive } from "../live";
import { ConfirmDialog, Hint, Badge, ErrorBox, ProportionBar } from "../components/common";
import { Link, path } from "../route";
import type { Cluster, Node } from "../types";
import { type Tone, formatCount, formatSpan } from "../format";

const TONES: Record<string, Tone> = { ready: "good", draining: "warn", silent: "bad" };

/** Cluster nodes, with the servers that each one owns. */
export function Nodes() {
  const { overview } = useLive();
  const { data, error, reload } = useAdmin<Cluster>("nodes", overview?.now);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const owned = data.nodes.reduce((sum, node) => sum + node.servers, 0);
  return (
    <div className="page">
      <h1>Nodes</h1>
      <dl className="tiles">
        <div><dt>Nodes</dt><dd>{data.nodes.length}</dd></div>
        <div><dt>Owned servers</dt><dd>{formatCount(owned)}</dd></div>
        <div><dt>Unowned servers</dt><dd className={data.unowned ? "warn" : ""}>{formatCount(data.unowned)}</dd></div>
        <div><dt>NATS</dt><dd className={data.nats ? "" : "warn"}>{data.nats ? "connected" : "not connected"}</dd></div>
      </dl>
      {data.unowned > 0 && <p className="prose">A node picks up each unowned server within seconds, unless no node has free capacity or the required labels.</p>}
      {!data.nats && <Hint text="Changes reach this node a second later. Check that NATS runs at an address of --cluster." />}
      <div className="tablebox" tabIndex={0} role="region" aria-label="Nodes">
        <table>
          <thead><tr><th>Node</th><th>State</th><th className="right">Servers</th><th className="wideonly">Labels</th><th className="wideonly">Address</th><th className="wideonly">Version</th><th className="right">Last heartbeat</th><th><span className="hidden">Actions</span></th></tr></thead>
          <tbody>{data.nodes.map((node) => <Row key={node.id} node={node} isThisNode={node.id === data.node} done={reload} />)}</tbody>
        </table>
      </div>
      <p className="muted">Cluster {data.cluster}, tenant {data.tenant}. <Link to="/servers?sort=owner">Servers by owner</Link></p>
    </div>
  );
}

function Row({ node, isThisNode, done }: { node: Node; isThisNode: boolean; done: () => void }) {
  const drain = async () => {
    await post(`nodes${path(node.id)}/drain`);
    done();
  };
  return (
    <tr>
      <td>{node.id}{isThisNode && <><br /><small className="muted">serves this page</small></>}</td>
      <td><Badge tone={TONES[node.state] ?? "warn"}>{node.state}</Badge></td>
      <td className="right">{node.servers} / {node.capacity} <ProportionBar value={node.servers} max={node.capacity} /></td>
      <td className="wideonly">{node.labels.join(", ") || "–"}</td>
      <td className="wideonly">{node.address || "through NATS"}</td>
      <td className="wideonly">{node.version}</td>
      <td className="right">{formatSpan(node.seen)} ago</td>
      <td className="right">
        {node.state !== "draining" && (
          <ConfirmDialog title={`Drain ${node.id}?`} text="It takes no new servers, and releases each of its servers once its calls have finished. A restart ends the drain." confirmLabel="Drain" action={drain}>
            {(open) => <button type="button" onClick={open}>Drain</button>}
          </ConfirmDialog>
        )}
      </td>
    </tr>
  );
}
