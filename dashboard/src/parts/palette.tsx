// ⌘K: to any page, server or tool by a few letters.

import { useEffect, useMemo, useRef, useState } from "react";
import { useAsked, useLive } from "../live";
import { go, path } from "../route";
import type { ToolRow } from "../types";
import { best } from "./fuzzy";

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
  ["/tools", "Tools", "tools"],
  ["/reliability", "Reliability", "reliability"],
  ["/groups", "Groups", "groups"],
  ["/keys", "Keys", "keys"],
  ["/config", "Config", "config"],
  ["/doctor", "Doctor", "doctor"],
  ["/events", "Events", "events"],
];

/** Who is alone has no other nodes to look at. */
export const pagesOf = (cluster: boolean | undefined) => (cluster ? PAGES : PAGES.filter(([to]) => to !== "/nodes"));

export function Palette({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const { servers, cluster } = useLive().overview ?? {};
  const tools = useAsked<{ tools: ToolRow[] }>("catalog").data?.tools;
  useEffect(() => dialog.current?.showModal(), []);

  const all = useMemo<Choice[]>(
    () => [
      ...pagesOf(cluster).map(([to, title]) => ({ kind: "page", title, hint: "", to })),
      ...(servers ?? []).map((each) => ({ kind: "server", title: each.server, hint: each.why, to: path("servers", each.server) })),
      ...(tools ?? []).map((each) => ({
        kind: "tool", title: `${each.server}.${each.tool}`, hint: each.description, to: path("tools", each.server, each.tool),
      })),
    ],
    [servers, cluster, tools],
  );
  const found = useMemo(() => {
    const close = best(all, text, (each) => each.title, 12);
    if (!text || close.length >= 12) return close;
    const more = best(all, text, (each) => `${each.title} ${each.hint.slice(0, 80)}`, 12).filter((each) => !close.includes(each));
    return [...close, ...more].slice(0, 12);
  }, [all, text]);
  const open = (choice: Choice | undefined) => {
    close();
    if (choice) go(choice.to);
  };
  return (
    <dialog ref={dialog} className="palette" aria-label="Find" onClose={close} onClick={(event) => event.target === dialog.current && close()}>
      <input
        autoFocus
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={`found-${at}`}
        aria-label="Find a page, server or tool"
        placeholder="Find a page, server or tool"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt((n) => Math.min(n + 1, found.length - 1));
          else if (event.key === "ArrowUp") setAt((n) => Math.max(n - 1, 0));
          else if (event.key === "Enter") open(found[at]);
          else return;
          event.preventDefault();
        }}
      />
      <ul id="found" role="listbox" aria-label="Found">
        {found.map((choice, index) => (
          <li
            key={choice.to}
            id={`found-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseMove={() => setAt(index)}
            onClick={() => open(choice)}
          >
            <span className="kind">{choice.kind}</span>
            <span className="title">{choice.title}</span>
            <span className="hint">{choice.hint}</span>
          </li>
        ))}
        {found.length === 0 && <li role="option" aria-selected="false" className="muted">Nothing fits “{text}”</li>}
      </ul>
    </dialog>
  );
}
