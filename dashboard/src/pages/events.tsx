import { useLive } from "../live";
import { Empty, EventText } from "../components/common";
import { type Column, Table } from "../components/table";
import { Link, go, path, setQuery, useRoute } from "../route";
import type { GatewayEvent } from "../types";
import { formatTime } from "../format";

const KINDS: [string, string][] = [["", "All"], ["state", "States"], ["connection", "Connections"], ["catalog", "Tool lists"], ["change", "Changes by administrators"], ["alert", "Alerts"], ["loop", "Event loop"]];

export function Events() {
  const { events } = useLive();
  const { query } = useRoute();
  const [kind, text] = [query.get("kind") ?? "", query.get("q") ?? ""];
  const rows = events.filter((event) => (!kind || event.kind === kind) && (!text || `${event.server} ${event.text}`.toLowerCase().includes(text.toLowerCase())));
  const columns: Column<GatewayEvent>[] = [
    { id: "at", title: "Time", width: "minmax(84px, 150px)", phone: true, show: (event) => <time dateTime={new Date(event.at * 1000).toISOString()}>{formatTime(event.at)}</time> },
    { id: "kind", title: "Kind", width: "92px", show: (event) => event.kind },
    { id: "server", title: "Server", width: "minmax(90px, 160px)", phone: true, show: (event) => (event.server ? <Link to={path("servers", event.server)}>{event.server}</Link> : "–") },
    { id: "text", title: "Event", width: "minmax(120px, 1fr)", phone: true, show: (event) => <span className="cut" title={event.text}><EventText event={event} /></span> },
  ];
  return (
    <div className="page full">
      <div className="bar">
        <h1>Events</h1>
        <input type="search" aria-label="Search events" placeholder="Search ( / )" value={text} onChange={(event) => setQuery({ q: event.target.value })} />
        <div className="chips" role="group" aria-label="Kind">
          {KINDS.map(([id, title]) => <button key={id} type="button" aria-pressed={kind === id} onClick={() => setQuery({ kind: id })}>{title}</button>)}
        </div>
      </div>
      <Table label="Events" columns={columns} rows={rows} id={(event) => String(event.n)} open={(event) => event.server && go(path("servers", event.server))} empty={<Empty title="No event matches." />} />
    </div>
  );
}
