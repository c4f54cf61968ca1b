// Router. The URL holds the page, its filters and the open drawer, so every view can be shared as a link.

import { type AnchorHTMLAttributes, type MouseEvent, useSyncExternalStore } from "react";

/** Path under which a proxy shows the gateway, such as /toolway; empty without one. The address of this script has it. */
export const PREFIX = /^(.*)\/dashboard\/files\//.exec(new URL(import.meta.url).pathname)?.[1] ?? "";
const BASE = `${PREFIX}/dashboard`;
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
}

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

let cached: { href: string; route: Route } | undefined;

function current(): Route {
  const href = location.pathname + location.search;
  if (cached?.href !== href) {
    const parts = location.pathname.slice(BASE.length).split("/").filter(Boolean).map(decodeURIComponent);
    cached = { href, route: { parts, query: new URLSearchParams(location.search) } };
  }
  return cached.route;
}

export const useRoute = () => useSyncExternalStore(subscribe, current);

export function go(to: string, mode: "push" | "replace" = "push"): void {
  const target = BASE + to;
  if (target === location.pathname + location.search) return;
  history[mode === "push" ? "pushState" : "replaceState"](null, "", target);
  for (const listener of listeners) listener();
  if (mode === "push") document.querySelector("main")?.scrollTo(0, 0);
}

/** Change some fields of the query; an empty value removes the field. */
export function setQuery(changes: Record<string, string>, mode: "push" | "replace" = "replace"): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  go(location.pathname.slice(BASE.length) + (text ? `?${text}` : ""), mode);
}

export const path = (...parts: string[]) => `/${parts.map(encodeURIComponent).join("/")}`;

export function Link({ to, ...rest }: { to: string } & AnchorHTMLAttributes<HTMLAnchorElement>) {
  const onClick = (event: MouseEvent<HTMLAnchorElement>) => {
    rest.onClick?.(event);
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return <a {...rest} href={BASE + to} onClick={onClick} />;
}
