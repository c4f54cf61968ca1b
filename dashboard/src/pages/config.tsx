import { post } from "../api";
import { look, useAsked } from "../live";
import { Act, Ask, Empty, Mark, Problem } from "../parts/bits";
import { setQuery, useRoute } from "../route";
import type { Config as File } from "../types";
import { ago, clock } from "../words";

export function Config() {
  const { data, error, again } = useAsked<File>("config");
  const { query } = useRoute();
  const version = query.get("version") ?? "";
  if (error) return <Problem of={error} />;
  if (!data) return <p className="muted wait">…</p>;
  return (
    <div className="page">
      <div className="bar">
        <h1>Config</h1>
        <code>{data.file}</code>
        <div className="actions"><Act act={async () => { await post("reload"); again(); await look(); }}>Read it again</Act></div>
      </div>
      {data.problems.length > 0 && (
        <section className="card">
          <h2>Problems</h2>
          <ul>
            {data.problems.map((each, at) => (
              <li key={at}>
                <Mark tone={each.severity === "error" ? "bad" : each.severity === "warning" ? "warn" : "idle"}>{each.severity}</Mark> {each.server && <strong>{each.server}: </strong>}
                {each.what}{each.line && <span className="muted"> (line {each.line})</span>}{each.fix && <p className="fix">→ {each.fix}</p>}
              </li>
            ))}
          </ul>
        </section>
      )}
      <div className="columns history">
        <section className="card">
          <h2>Earlier versions</h2>
          {!data.versions.length && <Empty title="Toolway has not changed this file yet. Each of its changes will leave a version here." />}
          <ol className="versions">
            {data.versions.map((each) => (
              <li key={each.version}>
                <button type="button" aria-pressed={version === String(each.version)} onClick={() => setQuery({ version: version === String(each.version) ? "" : String(each.version) })}>
                  <strong>{each.version}</strong> until {clock(each.until)} <small className="muted">{ago(each.until)}, {each.bytes} bytes</small>
                </button>
              </li>
            ))}
          </ol>
        </section>
        <section className="card wide">
          {version ? <Way version={version} done={() => { setQuery({ version: "" }); again(); void look(); }} /> : (<><h2>Now in force</h2><pre className="file" tabIndex={0}>{data.text}</pre></>)}
        </section>
      </div>
    </div>
  );
}

function Way({ version, done }: { version: string; done: () => void }) {
  const { data, error } = useAsked<{ diff: string }>(`config/diff/${version}`);
  if (error) return <Problem of={error} />;
  return (
    <>
      <div className="bar">
        <h2>What going back to version {version} changes</h2>
        <Ask
          title={`Go back to version ${version}?`}
          text="The file becomes what it was and is taken at once; only servers that differ are restarted. This can be taken back in the same way."
          yes="Roll back"
          act={async () => {
            await post(`config/rollback/${version}`);
            done();
          }}
        >
          {(ask) => <button type="button" className="danger" onClick={ask} disabled={!data?.diff}>Roll back</button>}
        </Ask>
      </div>
      {data && !data.diff && <p className="muted">Nothing: the file says the same now.</p>}
      {data?.diff && (
        <pre className="diff" tabIndex={0}>
          {data.diff.split("\n").map((line, at) => <span key={at} className={kindOf(line)}>{`${line}\n`}</span>)}
        </pre>
      )}
    </>
  );
}

function kindOf(line: string): string {
  if (line.startsWith("+++") || line.startsWith("---")) return "name";
  return { "+": "added", "-": "removed", "@": "place" }[line[0] ?? ""] ?? "";
}
