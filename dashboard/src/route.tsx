// The address bar is the state: every page, filter and drawer can be sent to somebody else.

import { type AnchorHTMLAttributes, type MouseEvent, useSyncExternalStore } from "react";

const BASE = "/dashboard";
const listeners = new Set<() => void>();

function subscribe(hear: () => void): () => void {
  listeners.add(hear);
  window.addEventListener("popstate", hear);
  return () => {
    listeners.delete(hear);
    window.removeEventListener("popstate", hear);
  };
}

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

let known: { href: string; route: Route } | undefined;

function current(): Route {
  const href = location.pathname + location.search;
  if (known?.href !== href) {
    const parts = location.pathname.slice(BASE.length).split("/").filter(Boolean).map(decodeURIComponent);
    known = { href, route: { parts, query: new URLSearchParams(location.search) } };
  }
  return known.route;
}

export const useRoute = () => useSyncExternalStore(subscribe, current);

export function go(to: string, how: "push" | "replace" = "push"): void {
  const target = BASE + to;
  if (target === location.pathname + location.search) return;
  history[how === "push" ? "pushState" : "replaceState"](null, "", target);
  for (const hear of listeners) hear();
  if (how === "push") document.querySelector("main")?.scrollTo(0, 0);
}

/** Change some fields of the query and keep the others; an empty value takes a field away. */
export function setQuery(changes: Record<string, string>, how: "push" | "replace" = "replace"): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  go(location.pathname.slice(BASE.length) + (text ? `?${text}` : ""), how);
}

export const path = (...parts: string[]) => `/${parts.map(encodeURIComponent).join("/")}`;

export function Link({ to, ...rest }: { to: string } & AnchorHTMLAttributes<HTMLAnchorElement>) {
  const click = (event: MouseEvent<HTMLAnchorElement>) => {
    rest.onClick?.(event);
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return <a {...rest} href={BASE + to} onClick={click} />;
}
