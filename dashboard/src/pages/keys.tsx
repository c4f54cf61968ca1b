import { type FormEvent, useState } from "react";
import { type Failure, post, remove } from "../api";
import { useAsked, useLive } from "../live";
import { Ask, Copyable, Empty, Mark, Problem } from "../parts/bits";
import { Matters } from "../parts/matters";
import { Link } from "../route";
import type { Endpoints, Key } from "../types";
import { ago, many } from "../words";

export function Keys() {
  const { data, error, again } = useAsked<{ keys: Key[] }>("keys");
  const facts = useAsked<{ parked: number; connections: number; under_way: number; listening: number }>("").data;
  const { calls } = useLive();
  const [made, setMade] = useState<{ token: string; name: string } | null>(null);
  const used = (name: string) => calls.find((call) => call.who === name);
  return (
    <div className="page">
      <h1>Keys and approvals</h1>
      {facts && (
        <dl className="tiles">
          <div><dt>Connections</dt><dd>{facts.connections}</dd></div>
          <div><dt>Requests under way</dt><dd>{facts.under_way}</dd></div>
          <div><dt>Listening</dt><dd>{facts.listening}</dd></div>
          <div><dt>Calls that wait for a person’s answer</dt><dd className={facts.parked ? "warn" : ""}>{facts.parked}</dd></div>
        </dl>
      )}
      {facts && facts.parked > 0 && <p className="prose">A server has asked something, and its client has not answered yet. The question is in that client; it ends with the call.</p>}
      <Matters />
      {error && <Problem of={error} />}
      {made && (
        <section className="card" role="status">
          <h2>The key of {made.name}</h2>
          <p>It is shown this once; only its hash is kept.</p>
          <Copyable block text={made.token} />
          <button type="button" onClick={() => setMade(null)}>I have it</button>
        </section>
      )}
      {data && <Create done={(key) => { setMade(key); again(); }} />}
      {data && data.keys.length === 0 && <Empty title="There is no key yet: only this machine’s own token opens the gateway." command="toolway keys create alice" />}
      {data && data.keys.length > 0 && (
        <div className="tablebox" tabIndex={0} role="region" aria-label="Keys">
          <table>
            <thead><tr><th>Name</th><th>May use</th><th className="wideonly">Made</th><th>Last call</th><th className="right">Calls</th><th><span className="hidden">Actions</span></th></tr></thead>
            <tbody>
              {data.keys.map((key) => (
                <tr key={key.id}>
                  <td>{key.name} {key.admin && <Mark tone="warn">administrator</Mark>}<br /><small className="muted">{key.id}</small></td>
                  <td>{key.scopes ? key.scopes.join(", ") || "nothing" : "everything"}</td>
                  <td className="wideonly">{key.created ? ago(key.created) : "–"}</td>
                  <td>{used(key.name) ? ago(used(key.name)!.at) : <span className="muted">none remembered</span>}</td>
                  <td className="right"><Link to={`/calls?who=${encodeURIComponent(key.name)}`}>{many(calls.filter((call) => call.who === key.name).length)}</Link></td>
                  <td className="right">
                    <Ask title={`Revoke the key of ${key.name}?`} text="Whatever its holder has open ends at once." yes="Revoke" act={async () => { await remove(`keys/${key.id}`); again(); }}>
                      {(ask) => <button type="button" onClick={ask}>Revoke</button>}
                    </Ask>
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

function Create({ done }: { done: (key: { token: string; name: string }) => void }) {
  const groups = useAsked<Endpoints>("groups").data?.groups ?? [];
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<string[]>([]);
  const [error, setError] = useState<Failure | null>(null);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    post<{ token: string; name: string }>("keys", { name, ...(scopes.length ? { scopes } : {}) }).then(
      (key) => {
        done(key);
        setName("");
      },
      (failed: Failure) => setError(failed),
    );
  };
  return (
    <form className="bar" onSubmit={submit}>
      <input type="text" aria-label="Whose key" placeholder="Whose key" maxLength={100} value={name} onChange={(event) => setName(event.target.value)} />
      {groups.map((group) => (
        <label key={group.name} className="inline">
          <input
            type="checkbox"
            checked={scopes.includes(group.name)}
            onChange={() => setScopes(scopes.includes(group.name) ? scopes.filter((each) => each !== group.name) : [...scopes, group.name])}
          />{" "}
          {group.name}
        </label>
      ))}
      <button type="submit" className="primary" disabled={!name.trim()}>Make a key {scopes.length ? "for these groups" : "for everything"}</button>
      {error && <Problem of={error} />}
    </form>
  );
}
