import { useEffect, useState } from "react";
import { logout } from "./api";
import { refresh, useAdmin, useLive } from "./live";
import { ShortcutsDialog } from "./components/shortcuts_dialog";
import { Icon } from "./components/icons";
import { SearchDialog, visiblePages } from "./components/search_dialog";
import { AddServer } from "./pages/add_server";
import { AlertsPage } from "./pages/alerts";
import { AgentPage, Agents } from "./pages/agents";
import { Approvals, LinkedApproval } from "./pages/approvals";
import { Calls } from "./pages/calls";
import { Config } from "./pages/config";
import { Definitions } from "./pages/definitions";
import { Doctor } from "./pages/doctor";
import { Events } from "./pages/events";
import { Toolsets } from "./pages/toolsets";
import { Home } from "./pages/home";
import { Keys } from "./pages/keys";
import { Login } from "./pages/login";
import { Nodes } from "./pages/nodes";
import { Reliability } from "./pages/reliability";
import { RunPage, Runs } from "./pages/runs";
import { Search } from "./pages/search";
import { ServerPage } from "./pages/server";
import { Servers } from "./pages/servers";
import { ToolPage } from "./pages/tool";
import { Tools } from "./pages/tools";
import { Usage } from "./pages/usage";
import { Link, PREFIX, useRoute } from "./route";
import { MenuDialog } from "./components/menu_dialog";
import type { Alert, ApprovalList } from "./types";
import { serverHealth } from "./format";

const PHONE_PAGES = ["/", "/servers", "/calls", "/tools"]; // the menu has the other ones
const MAC = navigator.platform.startsWith("Mac");

function Page() {
  const { parts } = useRoute();
  const [page, first, ...rest] = parts;
  switch (page) {
    case undefined: return <Home />;
    case "servers": return first ? <ServerPage key={first} name={first} /> : <Servers />;
    case "add": return <AddServer />;
    case "usage": return <Usage />;
    case "nodes": return <Nodes />;
    case "calls": return <Calls />;
    case "runs": return first ? <RunPage key={first} id={first} /> : <Runs />;
    case "agents": return first ? <AgentPage key={first} id={first} /> : <Agents />;
    case "tools": return first && rest.length ? <ToolPage key={parts.join("/")} server={first} tool={rest.join("/")} /> : <Tools />;
    case "definitions": return <Definitions />;
    case "approvals": return first ? <LinkedApproval key={first} link={first} /> : <Approvals />;
    case "search": return <Search />;
    case "reliability": return <Reliability />;
    case "toolsets": return <Toolsets />;
    case "alerts": return <AlertsPage />;
    case "keys": return <Keys />;
    case "config": return <Config />;
    case "doctor": return <Doctor />;
    case "events": return <Events />;
    default: return <UnknownPage name={page} />;
  }
}

/** Page for an address that does not exist, with links to the pages that do. */
function UnknownPage({ name }: { name: string }) {
  const { overview } = useLive();
  return (
    <div className="page">
      <h1>No page “{name.slice(0, 60)}”</h1>
      <p className="prose">Try one of these:</p>
      <ul className="columns">{visiblePages(overview?.cluster).map(([to, title]) => <li key={to}><Link to={to}>{title}</Link></li>)}</ul>
    </div>
  );
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
  const [searchOpen, setSearchOpen] = useState(false);
  const [shortcutsOpen, setShortcutsOpen] = useState(false);
  const [menuOpen, setMenuOpen] = useState(false);
  const [theme, nextTheme] = useTheme();
  const alerts = useAdmin<{ alerts: Alert[] }>(locked || !overview ? null : "alerts", overview?.last_event).data?.alerts.length ?? 0;
  const requests = useAdmin<ApprovalList>(locked || !overview ? null : "approvals", overview?.last_event).data?.requests;
  const waiting = requests?.filter((each) => each.state === "pending").length ?? 0;
  const current = `/${parts[0] ?? ""}`;
  const pages = visiblePages(overview?.cluster);
  const title = pages.find(([to]) => to === current)?.[1] ?? "Toolway";
  const unhealthy = overview?.servers.filter((server) => serverHealth(server)[0] === "bad").length ?? 0;

  useEffect(() => {
    document.title = `${unhealthy ? `(${unhealthy}) ` : ""}${parts[1] ?? title} · Toolway`;
  }, [unhealthy, parts, title]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setSearchOpen(true);
        return;
      }
      if ((event.target as HTMLElement).closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "?") setShortcutsOpen(true);
      else if (event.key === "r") void refresh();
      else if (event.key === "c") void navigator.clipboard.writeText(location.href);
      else if (event.key === "/") {
        event.preventDefault();
        const search = document.querySelector<HTMLElement>("main input[type=search]");
        if (search) search.focus();
        else setSearchOpen(true);
      }
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);

  if (locked) return <Login />;
  return (
    <>
      <a className="skip" href="#main">Skip to content</a>
      <header className="side">
        <Link to="/" className="brand"><span aria-hidden="true">⌥</span> Toolway</Link>
        <button type="button" className="find" onClick={() => setSearchOpen(true)}>
          <Icon name="find" /> <span>Search</span> <kbd>{MAC ? "⌘K" : "Ctrl K"}</kbd>
        </button>
        <nav aria-label="Pages">
          {pages.map(([to, name, icon]) => (
            <Link key={to} to={to} className={PHONE_PAGES.includes(to) ? "first" : undefined} aria-current={to === current ? "page" : undefined}>
              <Icon name={icon} />
              <span>{name}</span>
              {to === "/servers" && unhealthy > 0 && <span className="count" title={`${unhealthy} unhealthy`}>{unhealthy}</span>}
              {to === "/approvals" && waiting > 0 && <span className="count" title={`${waiting} ${waiting === 1 ? "call needs" : "calls need"} approval`}>{waiting}</span>}
              {to === "/alerts" && alerts > 0 && <span className="count" title={`${alerts} open alerts`}>{alerts}</span>}
            </Link>
          ))}
          <button type="button" className="menubutton" aria-haspopup="dialog" onClick={() => setMenuOpen(true)}>
            <Icon name="menu" />
            <span>Menu</span>
            {alerts > 0 && <span className="count" title={`${alerts} open alerts`}>{alerts}</span>}
          </button>
        </nav>
        <footer>
          <span className={connected ? "live" : "live off"} role="status">{connected ? "live" : "connecting…"}</span>
          <button type="button" className="quiet" onClick={nextTheme} aria-label={`Theme: ${theme}`}>
            {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"} {theme}
          </button>
          <button type="button" className="quiet" onClick={() => setShortcutsOpen(true)}>Shortcuts</button>
          <button type="button" className="quiet" onClick={() => void logout().then(() => location.assign(`${PREFIX}/dashboard`))}>Log out</button>
        </footer>
      </header>
      <main id="main" tabIndex={-1}><Page /></main>
      {menuOpen && <MenuDialog pages={pages} current={current} theme={theme} nextTheme={nextTheme} close={() => setMenuOpen(false)} />}
      {shortcutsOpen && <ShortcutsDialog close={() => setShortcutsOpen(false)} />}
      {searchOpen && <SearchDialog close={() => setSearchOpen(false)} />}
    </>
  );
}
