// A list of any length: only the rows in sight are made. j and k walk, Enter opens.

import { type ReactNode, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

export interface Column<T> {
  id: string;
  title: string;
  width: string; // of a grid
  right?: boolean;
  phone?: boolean; // shown on a narrow screen
  show: (row: T) => ReactNode;
}

const ROW = 34;
const MARGIN = 8; // rows made beyond what is in sight
const NARROW = "(max-width: 700px)";

export function useNarrow(): boolean {
  const [narrow, set] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const hear = () => set(query.matches);
    query.addEventListener("change", hear);
    return () => query.removeEventListener("change", hear);
  }, []);
  return narrow;
}

export function Grid<T>({ label, columns, rows, id, open, sort, setSort, empty, chosen }: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  open?: (row: T) => void;
  sort?: string; // "p95" or "-p95"
  setSort?: (sort: string) => void;
  empty?: ReactNode;
  chosen?: string | null;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [cursor, setCursor] = useState(-1);
  const shown = useNarrow() ? columns.filter((column) => column.phone) : columns;
  const template = shown.map((column) => column.width).join(" ");

  const measure = useCallback(() => {
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  }, []);
  useLayoutEffect(() => {
    measure();
    const watch = new ResizeObserver(measure);
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, [measure]);

  const walk = useCallback(
    (to: number) => {
      const next = Math.max(0, Math.min(rows.length - 1, to));
      setCursor(next);
      const top = next * ROW;
      const place = box.current;
      if (place && top < place.scrollTop) place.scrollTop = top;
      else if (place && top + ROW * 2 > place.scrollTop + place.clientHeight) place.scrollTop = top + ROW * 2 - place.clientHeight;
    },
    [rows.length],
  );

  useEffect(() => {
    const hear = (event: KeyboardEvent) => {
      const at = event.target as HTMLElement;
      if (at.closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "j") walk(cursor + 1);
      else if (event.key === "k") walk(cursor - 1);
      else if (event.key === "Enter" && cursor >= 0 && !at.closest("a, button") && rows[cursor]) open?.(rows[cursor]);
    };
    window.addEventListener("keydown", hear);
    return () => window.removeEventListener("keydown", hear);
  });

  const first = Math.max(0, Math.floor(view.top / ROW) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + MARGIN);
  return (
    <div className="grid" role="table" aria-label={label} aria-rowcount={rows.length + 1} ref={box} onScroll={measure} tabIndex={0}>
      <div role="rowgroup" className="heads">
        <div role="row" className="row head" style={{ gridTemplateColumns: template }} aria-rowindex={1}>
          {shown.map((column) => (
            <div key={column.id} role="columnheader" className={column.right ? "right" : undefined} aria-sort={sortOf(column.id, sort)}>
              {setSort && column.title ? (
                <button type="button" onClick={() => setSort(sort === `-${column.id}` ? column.id : `-${column.id}`)}>
                  {column.title}
                  <span aria-hidden="true">{sort === column.id ? " ↑" : sort === `-${column.id}` ? " ↓" : ""}</span>
                </button>
              ) : (
                column.title || <span className="hidden">choose</span>
              )}
            </div>
          ))}
        </div>
      </div>
      {rows.length === 0 ? (
        <div role="rowgroup"><div role="row"><div role="cell">{empty}</div></div></div>
      ) : (
        <div role="rowgroup" className="rows" style={{ height: rows.length * ROW }}>
            {rows.slice(first, last).map((row, offset) => {
              const at = first + offset;
              const key = id(row);
              return (
                <div
                  key={key}
                  role="row"
                  aria-rowindex={at + 2}
                  className={`row${at === cursor ? " cursor" : ""}${key === chosen ? " chosen" : ""}${open ? " opens" : ""}`}
                  style={{ gridTemplateColumns: template, top: at * ROW, height: ROW }}
                  onClick={(event) => {
                    if ((event.target as HTMLElement).closest("a, button, input, label")) return;
                    setCursor(at);
                    open?.(row);
                  }}
                >
                  {shown.map((column) => (
                    <div key={column.id} role="cell" className={column.right ? "right" : undefined}>
                      {column.show(row)}
                    </div>
                  ))}
                </div>
              );
            })}
        </div>
      )}
    </div>
  );
}

function sortOf(id: string, sort: string | undefined): "ascending" | "descending" | undefined {
  return sort === id ? "ascending" : sort === `-${id}` ? "descending" : undefined;
}

/** Rows in the order that `sort` wants, by what `values` say of them. */
export function sorted<T>(rows: T[], sort: string, values: Record<string, (row: T) => string | number>): T[] {
  const by = values[sort.replace(/^-/, "")];
  if (!by) return rows;
  const way = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    return way * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  });
}
