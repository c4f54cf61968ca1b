// Search dialog (⌘K): opens any page, server or tool by a few letters of its name, and tools by what they do.

import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { useAdmin, useLive } from "../live";
import { go, path } from "../route";
import { formatReasons } from "../format";
import type { FoundTool, SearchAnswer, ToolRow } from "../types";
import { search } from "./fuzzy";

interface Choice {
  kind: string;
  title: string;
  hint: string;
  to: string;
}

type Page = [to: string, title: string, icon: string];

const PAGES: Page[] = [
  ["/", "Home", "home"],
  ["/servers", "Servers", "servers"],
  ["/nodes", "Nodes", "nodes"],
  ["/calls", "Calls", "calls"],
  ["/runs", "Runs", "runs"],
  ["/agents", "Agents", "agents"],
  ["/approvals", "Approvals", "approvals"],
  ["/tools", "Tools", "tools"],
  ["/definitions", "Definitions", "definitions"],
  ["/search", "Search", "find"],
  ["/reliability", "Reliability", "reliability"],
  ["/usage", "Usage", "usage"],
  ["/alerts", "Alerts", "alerts"],
  ["/toolsets", "Toolsets", "toolsets"],
  ["/keys", "Keys", "keys"],
  ["/config", "Config", "config"],
  ["/doctor", "Doctor", "doctor"],
  ["/events", "Events", "events"],
];

/** Return the pages to show. The page of nodes exists only in a cluster. */
export const visiblePages = (cluster: boolean | undefined) => (cluster ? PAGES : PAGES.filter(([to]) => to !== "/nodes"));

const toChoice = (each: FoundTool): Choice => ({
  kind: each.score.toFixed(2), title: `${each.server}.${each.tool}`, hint: `${each.description} · ${formatReasons(each)}`, to: path("tools", each.server, each.tool),
});

export function SearchDialog({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [cursor, setCursor] = useState(0);
  const { servers, cluster } = useLive().overview ?? {};
  const tools = useAdmin<{ tools: ToolRow[] }>("tool-list").data?.tools;
  const asked = useDeferredValue(text.trim());
  const ranked = useAdmin<SearchAnswer>(asked.length > 2 ? `search?limit=8&query=${encodeURIComponent(asked)}` : null).data;
  useEffect(() => dialog.current?.showModal(), []);

  const all = useMemo<Choice[]>(
    () => [
      ...visiblePages(cluster).map(([to, title]) => ({ kind: "page", title, hint: "", to })),
      ...(servers ?? []).map((each) => ({ kind: "server", title: each.server, hint: each.why, to: path("servers", each.server) })),
      ...(tools ?? []).map((each) => ({
        kind: "tool", title: `${each.server}.${each.tool}`, hint: each.description, to: path("tools", each.server, each.tool),
      })),
    ],
    [servers, cluster, tools],
  );
  const found = useMemo(() => {
    const byName = search(all, text, (each) => each.title, text ? 12 : 20);
    if (!text || !ranked) return byName;
    const names = new Set(byName.slice(0, 6).map((each) => each.title));
    const byTask = ranked.tools.filter((each) => each.score > 0).map(toChoice).filter((each) => !names.has(each.title));
    return [...byName.slice(0, 6), ...byTask].slice(0, 12);
  }, [all, text, ranked]);
  const open = (choice: Choice | undefined) => {
    close();
    if (choice) go(choice.to);
  };
  return (
    <dialog ref={dialog} className="palette" aria-label="Search" onClose={close} onClick={(event) => event.target === dialog.current && close()}>
      <input
        autoFocus
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={found.length ? `found-${cursor}` : undefined}
        aria-label="Search for a page, a server, a tool or a task"
        placeholder="Search for a page, a server, a tool or a task"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setCursor(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setCursor((n) => Math.min(n + 1, found.length - 1));
          else if (event.key === "ArrowUp") setCursor((n) => Math.max(n - 1, 0));
          else if (event.key === "Enter") open(found[cursor]);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="found" role="listbox" aria-label="Search results">
        {found.map((choice, index) => (
          <li
            key={choice.to}
            id={`found-${index}`}
            role="option"
            aria-selected={index === cursor}
            onMouseMove={() => setCursor(index)}
            onClick={() => open(choice)}
          >
            <span className="kind">{choice.kind}</span>
            <span className="title">{choice.title}</span>
            <span className="hint">{choice.hint}</span>
          </li>
        ))}
        {found.length === 0 && <li role="option" aria-selected="false" className="muted none">No match for “{text}”</li>}
      </ul>
    </dialog>
  );
}
