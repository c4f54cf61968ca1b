// State that all pages share: server overview, recent calls and recent events. One event stream updates it.

import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { ApiError, get, streamEvents } from "./api";
import type { Call, GatewayEvent, Overview } from "./types";

const MAX_ROWS = 1500; // calls, and events, in memory
const REFRESH_INTERVAL_MS = 5000; // for values without events, such as percentiles

export interface Live {
  overview: Overview | null;
  calls: Call[]; // newest first
  overflow: number; // calls that the stream left out
  events: GatewayEvent[]; // newest first
  connected: boolean;
  locked: boolean; // no session: show the login page
  error: ApiError | null;
}

let live: Live = {
  overview: null, calls: [], overflow: 0, events: [], connected: false, locked: false, error: null,
};
const listeners = new Set<() => void>();

function update(changes: Partial<Live>): void {
  live = { ...live, ...changes };
  for (const listener of listeners) listener();
}

export const useLive = () =>
  useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => live,
  );

function setError(error: unknown): void {
  const apiError = error instanceof ApiError ? error : new ApiError(0, String(error));
  update({ error: apiError, locked: apiError.status === 401 || apiError.status === 403, connected: false });
}

let isRefreshing = false;
let refreshAgain = false;

/** Fetch the overview. Calls during a fetch are merged into one more fetch after it. */
export async function refresh(): Promise<void> {
  if (isRefreshing) {
    refreshAgain = true;
    return;
  }
  isRefreshing = true;
  try {
    update({ overview: await get<Overview>("overview"), error: null });
  } catch (error) {
    setError(error);
  }
  isRefreshing = false;
  if (refreshAgain) {
    refreshAgain = false;
    setTimeout(refresh, 300);
  }
}

function onStreamEvent(name: string, data: unknown): void {
  if (name === "calls") {
    const { calls, overflow } = data as { calls: Call[]; overflow: number };
    update({ calls: [...calls.reverse(), ...live.calls].slice(0, MAX_ROWS), overflow: live.overflow + overflow });
  } else if (name === "events") {
    const { events } = data as { events: GatewayEvent[] };
    update({ events: [...events.reverse(), ...live.events].slice(0, MAX_ROWS) });
    void refresh();
  }
}

async function run(signal: AbortSignal): Promise<void> {
  let backoff = 500; // ms
  while (!signal.aborted) {
    try {
      const [calls, events] = await Promise.all([
        get<{ calls: Call[] }>("calls?limit=500"),
        get<{ events: GatewayEvent[] }>("events?limit=500"),
      ]);
      update({ calls: calls.calls, events: events.events, connected: true, locked: false, error: null });
      void refresh();
      backoff = 500;
      await streamEvents(onStreamEvent, signal);
    } catch (error) {
      if (signal.aborted) return;
      setError(error);
      if (live.locked) return;
    }
    update({ connected: false });
    await new Promise((done) => setTimeout(done, backoff));
    backoff = Math.min(backoff * 2, 10_000);
  }
}

let stop: AbortController | undefined;

export function start(): void {
  stop?.abort();
  stop = new AbortController();
  update({ locked: false, error: null });
  void run(stop.signal);
}

setInterval(() => {
  if (live.connected && document.visibilityState === "visible") void refresh();
}, REFRESH_INTERVAL_MS);

/**
 * Fetch a document of `/admin`. It is fetched again when `path` or `refreshKey` changes, or by `reload`.
 *
 * A change during a fetch of the same document causes one more fetch after it. To abort the fetch instead would leave
 * the page empty if changes arrive faster than responses.
 */
export function useAdmin<T>(path: string | null, refreshKey: unknown = 0): { data: T | null; error: ApiError | null; reload: () => void } {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: ApiError | null }>({
    path, data: null, error: null,
  });
  const [count, setCount] = useState(0);
  const fetches = useRef<{ stop: AbortController; again: boolean } | null>(null);
  useEffect(() => () => {
    fetches.current?.stop.abort();
    fetches.current = null;
  }, [path]);
  useEffect(() => {
    if (path === null) return;
    if (fetches.current) fetches.current.again = true;
    else void fetchDocument(path);
  }, [path, refreshKey, count]);

  async function fetchDocument(current: string): Promise<void> {
    const own = { stop: new AbortController(), again: true };
    fetches.current = own;
    while (own.again && !own.stop.signal.aborted) {
      own.again = false;
      const found = await get<T>(current, own.stop.signal).then(
        (data) => ({ path: current, data, error: null }),
        (error: unknown) => ({ path: current, data: null, error: error as ApiError }),
      );
      if (!own.stop.signal.aborted) setState(found);
    }
    if (fetches.current === own) fetches.current = null;
  }

  const isCurrent = state.path === path;
  return { data: isCurrent ? state.data : null, error: isCurrent ? state.error : null, reload: () => setCount((n) => n + 1) };
}
