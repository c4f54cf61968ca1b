import { useState } from "react";
import { post } from "../api";
import { useLive } from "../live";
import { ActionButton, Copyable, Badge, Health } from "../components/common";
import { Link, path } from "../route";
import type { Report } from "../types";
import { type Tone, serverHealth } from "../format";

const TONES: Record<string, Tone> = { ok: "good", warn: "warn", fail: "bad", skip: "idle", note: "idle" };

export function Doctor() {
  const { overview } = useLive();
  const [report, setReport] = useState<Report | null>(null);
  const [name, setName] = useState("");
  const unhealthy = overview?.servers.filter((each) => serverHealth(each)[0] === "bad") ?? [];
  return (
    <div className="page">
      <div className="bar">
        <h1>Doctor</h1>
        <label className="inline">
          Check{" "}
          <select value={name} onChange={(event) => setName(event.target.value)}>
            <option value="">all servers</option>
            {overview?.servers.map((each) => <option key={each.server} value={each.server}>{each.server}</option>)}
          </select>
        </label>
        <ActionButton className="primary" action={async () => setReport(await post<Report>("doctor", name ? { server: name } : {}))}>Run doctor</ActionButton>
      </div>
      {!report && unhealthy.length > 0 && (
        <section className="card" aria-label="Unhealthy servers">
          <h2>Unhealthy now</h2>
          <ul className="attention">
            {unhealthy.slice(0, 8).map((server) => (
              <li key={server.server}>
                <Health server={server} />
                <div><Link to={path("servers", server.server)}>{server.server}</Link> <p>{server.why}</p><ActionButton action={async () => { setName(server.server); setReport(await post<Report>("doctor", { server: server.server })); }}>Check {server.server}</ActionButton></div>
              </li>
            ))}
          </ul>
        </section>
      )}
      {!report && <p className="prose">The doctor checks your files and starts a second process of each server. It reports each problem with its cause and a hint. This takes as long as your slowest server.</p>}
      {report && <Checks report={report} />}
    </div>
  );
}

const RANK: Record<string, number> = { fail: 0, warn: 1 };

/** Return the subjects with problems first, as in the terminal. */
function worstFirst(subjects: Report["subjects"]): Report["subjects"] {
  const rank = (subject: Report["subjects"][number]) => Math.min(2, ...subject.checks.map((check) => RANK[check.state] ?? 2));
  return [...subjects].sort((a, b) => rank(a) - rank(b));
}

export function Checks({ report }: { report: Report }) {
  return (
    <div className="checks">
      <p className="sentence">{report.first_line}</p>
      {worstFirst(report.subjects).map((subject) => (
        <section key={`${subject.kind} ${subject.name} ${subject.source}`} className="card">
          <h2>{subject.kind === "server" ? <Link to={path("servers", subject.name)}>{subject.name}</Link> : subject.name} <small className="muted">{subject.way}</small></h2>
          <ul>
            {subject.checks.map((check, at) => (
              <li key={at}>
                <Badge tone={TONES[check.state] ?? "idle"}>{check.name}</Badge> {check.message}
                {check.detail && <p className="muted">{check.detail}</p>}
                {check.hint && <p className="hint">→ {check.hint} {check.copy && <Copyable text={check.copy} />}</p>}
              </li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}
