// What is the same for all pages: how the servers are, the last calls, the last happenings. Fed by one stream.

import { useEffect, useState, useSyncExternalStore } from "react";
import { Failure, follow, get } from "./api";
import type { Call, Happening, Overview } from "./types";

const MOST = 1500;
const REFRESH = 5000; // ms: what has no event of its own, like percentiles

export interface Live {
  overview: Overview | null;
  calls: Call[]; // newest first
  passedOver: number;
  events: Happening[]; // newest first
  connected: boolean;
  locked: boolean; // there is no session
  error: Failure | null;
}

let live: Live = {
  overview: null, calls: [], passedOver: 0, events: [], connected: false, locked: false, error: null,
};
const listeners = new Set<() => void>();

function change(changes: Partial<Live>): void {
  live = { ...live, ...changes };
  for (const hear of listeners) hear();
}

export const useLive = () =>
  useSyncExternalStore(
    (hear) => {
      listeners.add(hear);
      return () => listeners.delete(hear);
    },
    () => live,
  );

function failed(error: unknown): void {
  const said = error instanceof Failure ? error : new Failure(0, String(error));
  change({ error: said, locked: said.status === 401 || said.status === 403, connected: false });
}

let looking = false;
let again = false;

/** Look at the servers now; asked often, it looks once more at the end. */
export async function look(): Promise<void> {
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  try {
    change({ overview: await get<Overview>("overview"), error: null });
  } catch (error) {
    failed(error);
  }
  looking = false;
  if (again) {
    again = false;
    setTimeout(look, 300);
  }
}

function hear(name: string, data: unknown): void {
  if (name === "calls") {
    const { calls, passed_over } = data as { calls: Call[]; passed_over: number };
    change({ calls: [...calls.reverse(), ...live.calls].slice(0, MOST), passedOver: live.passedOver + passed_over });
  } else if (name === "events") {
    const { events } = data as { events: Happening[] };
    change({ events: [...events.reverse(), ...live.events].slice(0, MOST) });
    void look();
  }
}

async function run(signal: AbortSignal): Promise<void> {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const [calls, events] = await Promise.all([
        get<{ calls: Call[] }>("calls?limit=500"),
        get<{ events: Happening[] }>("events?limit=500"),
      ]);
      change({ calls: calls.calls, events: events.events, connected: true, locked: false, error: null });
      void look();
      wait = 500;
      await follow(hear, signal);
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
      if (live.locked) return;
    }
    change({ connected: false });
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}

let stop: AbortController | undefined;

export function start(): void {
  stop?.abort();
  stop = new AbortController();
  change({ locked: false, error: null });
  void run(stop.signal);
}

setInterval(() => {
  if (live.connected && document.visibilityState === "visible") void look();
}, REFRESH);

/** A document of `/admin`, asked again when `path` or `turn` changes. */
export function useAsked<T>(path: string | null, turn: unknown = 0): { data: T | null; error: Failure | null; again: () => void } {
  const [state, set] = useState<{ path: string | null; data: T | null; error: Failure | null }>({
    path, data: null, error: null,
  });
  const [count, more] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    get<T>(path, stop.signal).then(
      (data) => set({ path, data, error: null }),
      (error: unknown) => {
        if (!stop.signal.aborted) set({ path, data: null, error: error as Failure });
      },
    );
    return () => stop.abort();
  }, [path, turn, count]);
  const mine = state.path === path;
  return { data: mine ? state.data : null, error: mine ? state.error : null, again: () => more((n) => n + 1) };
}
