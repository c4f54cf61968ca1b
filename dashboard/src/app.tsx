import { useEffect, useState } from "react";
import { leave } from "./api";
import { look, useLive } from "./live";
import { Help } from "./parts/help";
import { Icon } from "./parts/icons";
import { Palette, pagesOf } from "./parts/palette";
import { Calls } from "./pages/calls";
import { Config } from "./pages/config";
import { Doctor } from "./pages/doctor";
import { Events } from "./pages/events";
import { Groups } from "./pages/groups";
import { Home } from "./pages/home";
import { Keys } from "./pages/keys";
import { Login } from "./pages/login";
import { Nodes } from "./pages/nodes";
import { Reliability } from "./pages/reliability";
import { ServerPage } from "./pages/server";
import { Servers } from "./pages/servers";
import { ToolPage } from "./pages/tool";
import { Tools } from "./pages/tools";
import { Link, useRoute } from "./route";
import { healthOf } from "./words";

const MAC = navigator.platform.startsWith("Mac");

function Page() {
  const { parts } = useRoute();
  const [page, first, ...rest] = parts;
  switch (page) {
    case undefined: return <Home />;
    case "servers": return first ? <ServerPage key={first} name={first} /> : <Servers />;
    case "nodes": return <Nodes />;
    case "calls": return <Calls />;
    case "tools": return first && rest.length ? <ToolPage key={parts.join("/")} server={first} tool={rest.join("/")} /> : <Tools />;
    case "reliability": return <Reliability />;
    case "groups": return <Groups />;
    case "keys": return <Keys />;
    case "config": return <Config />;
    case "doctor": return <Doctor />;
    case "events": return <Events />;
    default: return <div className="empty"><p>There is no page “{page}”.</p><Link to="/">Home</Link></div>;
  }
}

function useTheme(): [string, () => void] {
  const [theme, set] = useState(() => localStorage.getItem("toolway-theme") ?? "system");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("toolway-theme", theme);
  }, [theme]);
  const next = { system: "light", light: "dark", dark: "system" }[theme] ?? "system";
  return [theme, () => set(next)];
}

export function App() {
  const { parts } = useRoute();
  const { overview, connected, locked } = useLive();
  const [finding, setFinding] = useState(false);
  const [helping, setHelping] = useState(false);
  const [theme, turn] = useTheme();
  const here = `/${parts[0] ?? ""}`;
  const pages = pagesOf(overview?.cluster);
  const title = pages.find(([to]) => to === here)?.[1] ?? "Toolway";
  const ill = overview?.servers.filter((server) => healthOf(server)[0] === "bad").length ?? 0;

  useEffect(() => {
    document.title = `${ill ? `(${ill}) ` : ""}${parts[1] ?? title} · Toolway`;
  }, [ill, parts, title]);
  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setFinding(true);
        return;
      }
      if ((event.target as HTMLElement).closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "?") setHelping(true);
      else if (event.key === "r") void look();
      else if (event.key === "c") void navigator.clipboard.writeText(location.href);
      else if (event.key === "/") {
        event.preventDefault();
        const search = document.querySelector<HTMLElement>("main input[type=search]");
        if (search) search.focus();
        else setFinding(true);
      }
    };
    window.addEventListener("keydown", hear);
    return () => window.removeEventListener("keydown", hear);
  }, []);

  if (locked) return <Login />;
  return (
    <>
      <a className="skip" href="#main">To the content</a>
      <header className="side">
        <Link to="/" className="brand"><span aria-hidden="true">⌥</span> Toolway</Link>
        <button type="button" className="find" onClick={() => setFinding(true)}>
          <Icon name="find" /> <span>Find</span> <kbd>{MAC ? "⌘K" : "Ctrl K"}</kbd>
        </button>
        <nav aria-label="Pages">
          {pages.map(([to, name, icon]) => (
            <Link key={to} to={to} aria-current={to === here ? "page" : undefined}>
              <Icon name={icon} />
              <span>{name}</span>
              {to === "/servers" && ill > 0 && <span className="count" title={`${ill} not well`}>{ill}</span>}
            </Link>
          ))}
        </nav>
        <footer>
          <span className={connected ? "live" : "live off"} role="status">{connected ? "live" : "connecting…"}</span>
          <button type="button" className="quiet" onClick={turn} aria-label={`Colours: ${theme}`}>
            {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"} {theme}
          </button>
          <button type="button" className="quiet" onClick={() => setHelping(true)}>Keys</button>
          <button type="button" className="quiet" onClick={() => void leave().then(() => location.assign("/dashboard"))}>Leave</button>
        </footer>
      </header>
      <main id="main" tabIndex={-1}><Page /></main>
      {helping && <Help close={() => setHelping(false)} />}
      {finding && <Palette close={() => setFinding(false)} />}
    </>
  );
}
