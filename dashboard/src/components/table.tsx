// Table of any length: only visible rows are rendered. The keys j and k move the cursor, Enter opens a row.

import { type ReactNode, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

export interface Column<T> {
  id: string;
  title: string;
  width: string; // of the CSS grid
  right?: boolean;
  phone?: boolean; // shown on a narrow screen
  show: (row: T) => ReactNode;
}

const ROW_HEIGHT = 34; // px
const MARGIN_ROWS = 8; // rendered beyond the visible ones
const NARROW_SCREEN = "(max-width: 700px)";

export function useNarrowScreen(): boolean {
  const [narrow, set] = useState(() => matchMedia(NARROW_SCREEN).matches);
  useEffect(() => {
    const query = matchMedia(NARROW_SCREEN);
    const onChange = () => set(query.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  return narrow;
}

export function Table<T>({ label, columns, rows, id, open, sort, setSort, empty, selected }: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  open?: (row: T) => void;
  sort?: string; // "p95" or "-p95"
  setSort?: (sort: string) => void;
  empty?: ReactNode;
  selected?: string | null;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [cursor, setCursor] = useState(-1);
  const shown = useNarrowScreen() ? columns.filter((column) => column.phone) : columns;
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

  const moveCursor = useCallback(
    (to: number) => {
      const next = Math.max(0, Math.min(rows.length - 1, to));
      setCursor(next);
      const top = next * ROW_HEIGHT;
      const element = box.current;
      if (element && top < element.scrollTop) element.scrollTop = top;
      else if (element && top + ROW_HEIGHT * 2 > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW_HEIGHT * 2 - element.clientHeight;
    },
    [rows.length],
  );

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target.closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "j") moveCursor(cursor + 1);
      else if (event.key === "k") moveCursor(cursor - 1);
      else if (event.key === "Enter" && cursor >= 0 && !target.closest("a, button") && rows[cursor]) open?.(rows[cursor]);
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  });

  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - MARGIN_ROWS);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + MARGIN_ROWS);
  return (
    <div className="grid" role="table" aria-label={label} aria-rowcount={rows.length + 1} ref={box} onScroll={measure} tabIndex={0}>
      <div role="rowgroup" className="heads">
        <div role="row" className="row head" style={{ gridTemplateColumns: template }} aria-rowindex={1}>
          {shown.map((column) => (
            <div key={column.id} role="columnheader" className={column.right ? "right" : undefined} aria-sort={sortDirection(column.id, sort)}>
              {setSort && column.title ? (
                <button type="button" onClick={() => setSort(sort === `-${column.id}` ? column.id : `-${column.id}`)}>
                  {column.title}
                  <span aria-hidden="true">{sort === column.id ? " ↑" : sort === `-${column.id}` ? " ↓" : ""}</span>
                </button>
              ) : (
                column.title || <span className="hidden">select</span>
              )}
            </div>
          ))}
        </div>
      </div>
      {rows.length === 0 ? (
        <div role="rowgroup"><div role="row"><div role="cell">{empty}</div></div></div>
      ) : (
        <div role="rowgroup" className="rows" style={{ height: rows.length * ROW_HEIGHT }}>
            {rows.slice(first, last).map((row, offset) => {
              const at = first + offset;
              const key = id(row);
              return (
                <div
                  key={key}
                  role="row"
                  aria-rowindex={at + 2}
                  className={`row${at === cursor ? " cursor" : ""}${key === selected ? " selected" : ""}${open ? " opens" : ""}`}
                  style={{ gridTemplateColumns: template, top: at * ROW_HEIGHT, height: ROW_HEIGHT }}
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

function sortDirection(id: string, sort: string | undefined): "ascending" | "descending" | undefined {
  return sort === id ? "ascending" : sort === `-${id}` ? "descending" : undefined;
}

/** Sort rows by the column of `sort`; a leading `-` reverses the order. `values` returns the sort key of each column. */
export function sortRows<T>(rows: T[], sort: string, values: Record<string, (row: T) => string | number>): T[] {
  const by = values[sort.replace(/^-/, "")];
  if (!by) return rows;
  const direction = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    return direction * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  });
}
