import { useState } from "react";
import { post } from "../api";
import { refresh, useAdmin } from "../live";
import { ActionButton, ConfirmDialog, Empty, Badge, ErrorBox } from "../components/common";
import { Diff, SaveButton } from "../components/save_dialog";
import { setQuery, useRoute } from "../route";
import type { Config as File } from "../types";
import { formatAge, formatTime } from "../format";

export function Config() {
  const { data, error, reload } = useAdmin<File>("config");
  const { query } = useRoute();
  const version = query.get("version") ?? "";
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <div className="bar">
        <h1>Config</h1>
        <code>{data.file}</code>
        <div className="actions"><ActionButton action={async () => { await post("reload"); reload(); await refresh(); }}>Reload file</ActionButton></div>
      </div>
      {data.problems.length > 0 && (
        <section className="card">
          <h2>Problems</h2>
          <ul>
            {data.problems.map((each, at) => (
              <li key={at}>
                <Badge tone={each.severity === "error" ? "bad" : each.severity === "warning" ? "warn" : "idle"}>{each.severity}</Badge> {each.server && <strong>{each.server}: </strong>}
                {each.message}{each.line && <span className="muted"> (line {each.line})</span>}{each.hint && <p className="hint">→ {each.hint}</p>}
              </li>
            ))}
          </ul>
        </section>
      )}
      <div className="columns history">
        <section className="card">
          <h2>Earlier versions</h2>
          {!data.versions.length && <Empty title="No earlier versions. Toolway saves one here each time it changes the file." />}
          <ol className="versions">
            {data.versions.map((each) => (
              <li key={each.version}>
                <button type="button" aria-pressed={version === String(each.version)} onClick={() => setQuery({ version: version === String(each.version) ? "" : String(each.version) })}>
                  <strong>{each.version}</strong> until {formatTime(each.until)} <small className="muted">{formatAge(each.until)}, {each.bytes} bytes</small>
                  {each.changes && <small className="muted cut" title={each.changes.join(", ")}>then {each.changes.join(", ") || "no entry changed"}</small>}
                </button>
              </li>
            ))}
          </ol>
        </section>
        <section className="card wide">
          {version ? <VersionDiff version={version} done={() => { setQuery({ version: "" }); reload(); void refresh(); }} /> : <Editor key={data.text} text={data.text} done={() => { reload(); void refresh(); }} />}
        </section>
      </div>
    </div>
  );
}

/** The file's content. The values that the user changes in it are applied; comments stay as they are. */
function Editor({ text, done }: { text: string; done: () => void }) {
  const [edited, setEdited] = useState<string | null>(null);
  const [untrusted, setUntrusted] = useState("");
  if (edited === null) {
    return (
      <>
        <div className="bar"><h2>Current version</h2><button type="button" onClick={() => setEdited(text)}>Edit</button></div>
        {untrusted && <p role="status">An entry needs your review. On the gateway machine, run: <code>{untrusted}</code></p>}
        <pre className="file" tabIndex={0}>{text}</pre>
      </>
    );
  }
  return (
    <>
      <h2>Edit the file</h2>
      <p className="muted">Here you can add and remove servers, change some settings of a server, and change toolsets. Leave *** as it is: it stands for a secret. Comments are kept. For everything else: <code>toolway edit</code></p>
      <textarea aria-label="Text of the file" className="file" rows={26} spellCheck={false} value={edited} onChange={(event) => setEdited(event.target.value)} />
      <div className="actions">
        <SaveButton title="Change the config file?" disabled={edited === text} change={() => ({ method: "put", path: "config", body: { before: text, after: edited } })} done={(written) => { setUntrusted(written.needs_review ? (written.hint ?? "") : ""); setEdited(null); done(); }}>Review and save</SaveButton>
        <button type="button" onClick={() => setEdited(null)}>Cancel</button>
      </div>
    </>
  );
}

function VersionDiff({ version, done }: { version: string; done: () => void }) {
  const { data, error } = useAdmin<{ diff: string }>(`config/diff/${version}`);
  if (error) return <ErrorBox error={error} />;
  return (
    <>
      <div className="bar">
        <h2>What rolling back to version {version} changes</h2>
        <ConfirmDialog
          title={`Roll back to version ${version}?`}
          text="Restores the earlier version and applies it right away. Only servers that differ restart. You can undo a rollback the same way."
          confirmLabel="Roll back"
          action={async () => {
            await post(`config/rollback/${version}`);
            done();
          }}
        >
          {(open) => <button type="button" className="danger" onClick={open} disabled={!data?.diff}>Roll back</button>}
        </ConfirmDialog>
      </div>
      {data && !data.diff && <p className="muted">No differences.</p>}
      {data?.diff && <Diff text={data.diff} />}
    </>
  );
}
