import { type FormEvent, useState } from "react";
import { type ApiError, post, remove } from "../api";
import { useAdmin, useLive } from "../live";
import { ConfirmDialog, Copyable, Empty, Badge, ErrorBox } from "../components/common";
import { Link } from "../route";
import type { Endpoints, Key } from "../types";
import { formatAge, formatCount } from "../format";

export function Keys() {
  const { data, error, reload } = useAdmin<{ keys: Key[] }>("keys");
  const stats = useAdmin<{ pending: number; connections: number; running: number; subscriptions: number }>("").data;
  const { calls } = useLive();
  const [created, setCreated] = useState<{ token: string; name: string } | null>(null);
  const lastCall = (name: string) => calls.find((call) => call.principal === name);
  return (
    <div className="page">
      <h1>Keys</h1>
      {stats && (
        <dl className="tiles">
          <div><dt>Connections</dt><dd>{stats.connections}</dd></div>
          <div><dt>Requests in flight</dt><dd>{stats.running}</dd></div>
          <div><dt>Subscriptions</dt><dd>{stats.subscriptions}</dd></div>
          <div><dt>Calls waiting for client input</dt><dd className={stats.pending ? "warn" : ""}>{stats.pending}</dd></div>
        </dl>
      )}
      {stats && stats.pending > 0 && <p className="prose">A server asked its client something, and the client has not answered yet. The client shows the request; it ends with the call.</p>}
      {error && <ErrorBox error={error} />}
      {created && (
        <section className="card" role="status">
          <h2>API key for {created.name}</h2>
          <p>Copy it now. You won't see it again: we only store a hash.</p>
          <Copyable block text={created.token} />
          <button type="button" onClick={() => setCreated(null)}>Close</button>
        </section>
      )}
      {data && <CreateKey done={(key) => { setCreated(key); reload(); }} />}
      {data && data.keys.length === 0 && <Empty title="No API keys yet. Only the local token works." command="toolway keys create alice" />}
      {data && data.keys.length > 0 && (
        <div className="tablebox" tabIndex={0} role="region" aria-label="Keys">
          <table>
            <thead><tr><th>Name</th><th>Access</th><th className="wideonly">Created</th><th>Last call</th><th className="right">Calls</th><th><span className="hidden">Actions</span></th></tr></thead>
            <tbody>
              {data.keys.map((key) => (
                <tr key={key.id}>
                  <td>{key.name} {key.admin && <Badge tone="warn">administrator</Badge>}<br /><small className="muted">{key.id}</small></td>
                  <td>{key.access ? key.access.join(", ") || "none" : "all servers"}</td>
                  <td className="wideonly">{key.created ? formatAge(key.created) : "–"}</td>
                  <td>{lastCall(key.name) ? formatAge(lastCall(key.name)!.at) : <span className="muted">none stored</span>}</td>
                  <td className="right"><Link to={`/calls?principal=${encodeURIComponent(key.name)}`}>{formatCount(calls.filter((call) => call.principal === key.name).length)}</Link></td>
                  <td className="right">
                    <ConfirmDialog title={`Revoke the API key of ${key.name}?`} text="All its sessions end immediately." confirmLabel="Revoke" action={async () => { await remove(`keys/${key.id}`); reload(); }}>
                      {(open) => <button type="button" onClick={open}>Revoke</button>}
                    </ConfirmDialog>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function CreateKey({ done }: { done: (key: { token: string; name: string }) => void }) {
  const toolsets = useAdmin<Endpoints>("toolsets").data?.toolsets ?? [];
  const [name, setName] = useState("");
  const [access, setAccess] = useState<string[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    post<{ token: string; name: string }>("keys", { name, ...(access.length ? { access } : {}) }).then(
      (key) => {
        done(key);
        setName("");
      },
      (failed: ApiError) => setError(failed),
    );
  };
  return (
    <form className="bar" onSubmit={submit}>
      <input type="text" aria-label="Name of the key" placeholder="Name of the key" maxLength={100} value={name} onChange={(event) => setName(event.target.value)} />
      {toolsets.map((toolset) => (
        <label key={toolset.name} className="inline">
          <input
            type="checkbox"
            checked={access.includes(toolset.name)}
            onChange={() => setAccess(access.includes(toolset.name) ? access.filter((each) => each !== toolset.name) : [...access, toolset.name])}
          />{" "}
          {toolset.name}
        </label>
      ))}
      <button type="submit" className="primary" disabled={!name.trim()}>Create key {access.length ? "for these toolsets" : "for all servers"}</button>
      {error && <ErrorBox error={error} />}
    </form>
  );
}
