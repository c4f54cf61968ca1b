// Filters that the user saved under a name, in this browser. A filter is the query of a page.

import { useRef, useState, type FormEvent } from "react";
import { PREFIX, go, useRoute } from "../route";

const STORAGE_KEY = `toolway-views${PREFIX}`;
const MAX_VIEWS = 50; // of all pages
const IGNORED = ["call"]; // the open drawer is not a filter

interface View {
  page: string;
  name: string;
  query: string;
}

function read(): View[] {
  try {
    const found = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "[]") as unknown;
    return Array.isArray(found) ? (found as View[]).filter((each) => typeof each?.name === "string" && typeof each.query === "string") : [];
  } catch {
    return [];
  }
}

/** Saved filters of a page such as `/calls`, and a button that saves the current one. */
export function SavedViews({ page }: { page: string }) {
  const { query } = useRoute();
  const [views, setViews] = useState(read);
  const dialog = useRef<HTMLDialogElement>(null);
  const [name, setName] = useState("");
  const current = new URLSearchParams([...query].filter(([key]) => !IGNORED.includes(key))).toString();
  const own = views.filter((each) => each.page === page);
  const store = (next: View[]) => {
    setViews(next);
    localStorage.setItem(STORAGE_KEY, JSON.stringify(next));
  };
  const save = (event: FormEvent) => {
    event.preventDefault();
    const title = name.trim();
    if (title) store([...read().filter((each) => each.page !== page || each.name !== title), { page, name: title, query: current }].slice(-MAX_VIEWS));
    setName("");
    dialog.current?.close();
  };
  if (!own.length && !current) return null;
  return (
    <div className="chips" role="group" aria-label="Saved filters">
      {own.map((each) => (
        <span key={each.name} className="view">
          <button type="button" aria-pressed={each.query === current} onClick={() => go(`${page}${each.query && each.query !== current ? `?${each.query}` : ""}`)}>{each.name}</button>
          <button type="button" className="quiet" aria-label={`Delete the filter ${each.name}`} onClick={() => store(read().filter((other) => other.page !== page || other.name !== each.name))}>✕</button>
        </span>
      ))}
      {current && !own.some((each) => each.query === current) && <button type="button" onClick={() => dialog.current?.showModal()}>Save filter</button>}
      <dialog ref={dialog} aria-label="Save filter">
        <form onSubmit={save}>
          <label className="field">Filter name<input type="text" maxLength={40} value={name} onChange={(event) => setName(event.target.value)} /></label>
          <div className="actions">
            <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
            <button type="submit" className="primary" disabled={!name.trim()}>Save</button>
          </div>
        </form>
      </dialog>
    </div>
  );
}
