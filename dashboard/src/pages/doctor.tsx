import { useState } from "react";
import { post } from "../api";
import { useLive } from "../live";
import { Act, Copy, Mark } from "../parts/bits";
import { Link, path } from "../route";
import type { Report } from "../types";
import type { Tone } from "../words";

const TONES: Record<string, Tone> = { ok: "good", warn: "warn", fail: "bad", skip: "idle", note: "idle" };

export function Doctor() {
  const { overview } = useLive();
  const [report, setReport] = useState<Report | null>(null);
  const [name, setName] = useState("");
  return (
    <div className="page">
      <div className="bar">
        <h1>Doctor</h1>
        <label className="inline">
          Examine{" "}
          <select value={name} onChange={(event) => setName(event.target.value)}>
            <option value="">everything</option>
            {overview?.servers.map((each) => <option key={each.server} value={each.server}>{each.server}</option>)}
          </select>
        </label>
        <Act className="primary" act={async () => setReport(await post<Report>("doctor", name ? { server: name } : {}))}>Examine</Act>
      </div>
      {!report && <p className="prose">The doctor looks at the files, starts each server once more beside the one that runs, and says what is wrong, why, and how to fix it. It takes as long as the slowest start.</p>}
      {report && <Checks of={report} />}
    </div>
  );
}

export function Checks({ of }: { of: Report }) {
  return (
    <div className="checks">
      <p className="sentence">{of.first_line}</p>
      {of.subjects.map((subject) => (
        <section key={`${subject.kind} ${subject.name} ${subject.source}`} className="card">
          <h2>{subject.kind === "server" ? <Link to={path("servers", subject.name)}>{subject.name}</Link> : subject.name} <small className="muted">{subject.way}</small></h2>
          <ul>
            {subject.checks.map((check, at) => (
              <li key={at}>
                <Mark tone={TONES[check.state] ?? "idle"}>{check.name}</Mark> {check.what}
                {check.evidence && <p className="muted">{check.evidence}</p>}
                {check.fix && <p className="fix">→ {check.fix} {check.copy && <Copy text={check.copy} />}</p>}
              </li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}
