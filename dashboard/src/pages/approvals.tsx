import { useState } from "react";
import { type ApiError, get, post } from "../api";
import { useAdmin, useLive } from "../live";
import { Badge, ConfirmDialog, Empty, ErrorBox } from "../components/common";
import { Link, path } from "../route";
import type { Approval, ApprovalList } from "../types";
import { type Tone, formatAge, formatCount } from "../format";

const TONES: Record<string, Tone> = { pending: "warn", approved: "good", denied: "bad", used: "idle" };

/** Calls that need an administrator's approval, and calls decided in the last 15 minutes. */
export function Approvals() {
  const { overview } = useLive();
  const { data, error, reload } = useAdmin<ApprovalList>("approvals", overview?.last_event);
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  const waiting = data.requests.filter((each) => each.state === "pending");
  return (
    <div className="page">
      <h1>Approvals</h1>
      <dl className="tiles">
        <div><dt>Waiting</dt><dd className={waiting.length ? "warn" : ""}>{formatCount(waiting.length)}</dd></div>
        <div><dt>Recently decided</dt><dd>{formatCount(data.requests.length - waiting.length)}</dd></div>
      </dl>
      {!data.requests.length && <Empty title={data.enabled ? "Nothing to approve." : "No approval rules yet. Add some under toolway.approve."} />}
      {data.requests.map((each) => <Request key={each.id} request={each} done={reload} />)}
    </div>
  );
}

/** The call that a link in a message names. The gateway checks the link when the page is loaded, and with the answer. */
export function LinkedApproval({ link }: { link: string }) {
  const { overview } = useLive();
  const { data, error, reload } = useAdmin<Approval>(`approval-links/${encodeURIComponent(link)}`, overview?.last_event);
  if (!data && !error) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <h1>Approval</h1>
      {error && <ErrorBox error={error} />}
      {data && <Request request={data} done={reload} link={link} />}
      <p><Link to="/approvals">All approvals</Link></p>
    </div>
  );
}

/** One request. If the list cut its arguments, it can be approved only after all of them were loaded. */
function Request({ request: listed, done, link }: { request: Approval; done: () => void; link?: string }) {
  const [note, setNote] = useState("");
  const [whole, setWhole] = useState<Approval>();
  const [error, setError] = useState<ApiError>();
  const request = whole ? { ...listed, arguments: whole.arguments, complete: whole.complete } : listed;
  const showAll = () => get<Approval>(`approvals/${encodeURIComponent(listed.id)}`).then(setWhole, setError);
  const name = `${request.server}.${request.tool}`;
  const answer = (yes: boolean) => async () => {
    await post(`approvals/${encodeURIComponent(request.id)}`, { yes, note: yes ? "" : note, ...(link && { link }) });
    done();
  };
  return (
    <section className="card" aria-label={`${name} ${request.id}`}>
      <div className="bar">
        <h2>{name} <Badge tone={TONES[request.state] ?? "idle"}>{request.state}</Badge></h2>
        {request.state === "pending" && (
          <div className="actions">
            <ConfirmDialog
              title={`Deny ${name}?`} text="The call won't be sent. The caller sees your reason." confirmLabel="Deny" action={answer(false)}
              extra={<label className="field">Reason<input type="text" maxLength={500} value={note} onChange={(event) => setNote(event.target.value)} /></label>}
            >
              {(open) => <button type="button" onClick={open}>Deny</button>}
            </ConfirmDialog>
            <ConfirmDialog
              title={`Approve ${name}?`} text={`${request.caller} may repeat this call with these arguments once, within 15 minutes.`}
              confirmLabel="Approve" danger={false} action={answer(true)}
            >
              {(open) => (
                <button
                  type="button" className="primary" onClick={open} disabled={!request.complete}
                  title={request.complete ? undefined : "Show all arguments first"}
                >Approve</button>
              )}
            </ConfirmDialog>
          </div>
        )}
      </div>
      <p>
        {request.caller}, {request.effect}
        {" "}<small className="muted">{formatAge(request.asked_at)}, <Link to={path("tools", request.server, request.tool)}>{request.tool}</Link>, {request.id}</small>
      </p>
      {request.reason && <p>{request.who}: {request.reason}</p>}
      <pre className="whole" tabIndex={0}>
        {request.arguments.map((each, index) => (
          <span key={index}>{`${each.name} = ${each.value}\n`}{each.note && <em>{`    ← ${each.note}\n`}</em>}</span>
        ))}
        {!request.arguments.length && "no arguments"}
      </pre>
      {error && <ErrorBox error={error} />}
      {!request.complete && <p><button type="button" onClick={showAll}>Show all arguments</button></p>}
      <p><small className="muted">what will be sent: <code title={request.digest}>sha256 {request.digest.slice(0, 16)}</code></small></p>
    </section>
  );
}
