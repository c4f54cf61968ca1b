import { useDeferredValue } from "react";
import { useAdmin } from "../live";
import { Badge, Empty, ErrorBox, ProportionBar } from "../components/common";
import { Link, path, setQuery, useRoute } from "../route";
import type { SearchAnswer, Searches, Tokens } from "../types";
import { formatAge, formatCount, formatReasons } from "../format";

/** Tool search as clients see it: the ranking with its reasons, what listing costs, and searches that led to no call. */
export function Search() {
  const { query } = useRoute();
  const text = query.get("q") ?? "";
  return (
    <div className="page">
      <h1>Tool search</h1>
      <p className="prose">Clients at <code>/mcp/search</code> list four tools and find the rest by searching. Here is the same ranking, with the words that matched each tool.</p>
      <input type="search" aria-label="Task" placeholder="Describe a task ( / )" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
      <Ranking text={text} />
      <div className="columns">
        <TokenTables />
        <UnmetSearches />
      </div>
    </div>
  );
}

function Ranking({ text }: { text: string }) {
  const asked = useDeferredValue(text.trim());
  const { data, error } = useAdmin<SearchAnswer>(asked ? `search?limit=10&query=${encodeURIComponent(asked)}` : null);
  if (error) return <ErrorBox error={error} />;
  if (!asked || !data) return null;
  return (
    <section className="card" aria-label="Ranking">
      {!data.fits && <p><Badge tone="warn">No good match. The closest tools:</Badge></p>}
      <div className="tablebox" tabIndex={0} role="region" aria-label="Found tools">
        <table>
          <thead><tr><th className="right">Score</th><th>Tool</th><th>Found by</th><th className="wideonly">Description</th></tr></thead>
          <tbody>
            {data.tools.map((each) => (
              <tr key={`${each.server}.${each.tool}`}>
                <td className="right"><ProportionBar value={each.score} max={1} /> {each.score.toFixed(2)}</td>
                <td><Link to={path("tools", each.server, each.tool)}>{each.server}.{each.tool}</Link></td>
                <td title={each.reasons.map((reason) => `${reason.text || reason.kind} ${reason.weight.toFixed(2)} (${reason.fields.join(", ") || reason.kind})`).join("\n")}>{formatReasons(each) || "–"}</td>
                <td className="wideonly muted">{each.description}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className="muted">{data.tools.length} of {data.total_tools} tools of {data.total_servers} servers</p>
    </section>
  );
}

function TokenTables() {
  const { data, error } = useAdmin<Tokens>("tokens");
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted">…</p>;
  const largest = Math.max(1, ...data.servers.map((each) => each.tokens));
  return (
    <section className="card">
      <h2>Tokens (OpenAI) in every conversation</h2>
      {data.advice && <p><Badge tone="warn">{data.advice}</Badge></p>}
      <table>
        <thead><tr><th>Endpoint</th><th className="right">Tools</th><th className="right">Tokens</th></tr></thead>
        <tbody>
          {data.endpoints.map((each) => (
            <tr key={each.path}><td><code>{each.path}</code></td><td className="right">{each.tools}</td><td className="right">{formatCount(each.tokens)}</td></tr>
          ))}
        </tbody>
      </table>
      <table>
        <thead><tr><th>Server</th><th className="right">Tools</th><th className="right">Tokens</th></tr></thead>
        <tbody>
          {data.servers.slice(0, 20).map((each) => (
            <tr key={each.server}>
              <td><Link to={path("servers", each.server)}>{each.server}</Link></td><td className="right">{each.tools}</td>
              <td className="right"><ProportionBar value={each.tokens} max={largest} /> {formatCount(each.tokens)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {data.servers.length > 20 && <p className="muted">and {data.servers.length - 20} more servers</p>}
    </section>
  );
}

function UnmetSearches() {
  const { data, error } = useAdmin<Searches>("searches");
  if (error) return <ErrorBox error={error} />;
  if (!data) return <p className="muted">…</p>;
  const calls = Object.values(data.calls).reduce((sum, each) => sum + each, 0);
  return (
    <section className="card">
      <h2>Searches without a call</h2>
      <p className="muted">{data.fits + data.nothing} searches since the start, {data.nothing} without a good match; {calls} calls through search.</p>
      {data.unmet.length === 0 && <Empty title="Every search led to a call." />}
      {data.unmet.length > 0 && (
        <div className="tablebox" tabIndex={0} role="region" aria-label="Searches without a call">
          <table>
            <thead><tr><th>Query</th><th className="right">Times</th><th className="wideonly">Found</th><th>Last</th></tr></thead>
            <tbody>
              {data.unmet.map((each) => (
                <tr key={each.query}>
                  <td><button type="button" className="quiet" onClick={() => setQuery({ q: each.query })}>{each.query}</button> {!each.fits && <Badge tone="warn">nothing fits</Badge>}</td>
                  <td className="right">{each.times}</td>
                  <td className="wideonly muted">{each.found.join(", ")}</td>
                  <td>{formatAge(each.at)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p className="muted">A better description of the right tool helps: use <code>describe</code> in a toolset, or fix it in the server.</p>
    </section>
  );
}
