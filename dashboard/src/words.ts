// Numbers and states in words.

export type Tone = "good" | "warn" | "bad" | "idle";

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return span(value);
}

export function span(value: number): string {
  const total = Math.round(value);
  if (total < 100) return `${total} s`;
  if (total < 5400) return `${Math.round(total / 60)} min`;
  if (total < 172_800) return `${Math.round(total / 3600)} h`;
  return `${Math.round(total / 86_400)} d`;
}

export const ago = (at: number, now = Date.now() / 1000) => `${span(Math.max(0, now - at))} ago`;

export function clock(at: number): string {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return today ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

export function many(value: number): string {
  if (value < 1000) return String(value);
  if (value < 1e6) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}

export const share = (part: number, whole: number) =>
  whole ? `${((100 * part) / whole).toFixed(part && part / whole < 0.1 ? 1 : 0)} %` : "–";

/** About how many tokens so many characters of a definition cost a model. */
export const tokens = (size: number) => Math.round(size / 4.4);

const STATES: Record<string, [Tone, string]> = {
  ready: ["good", "ready"],
  idle: ["idle", "asleep"],
  starting: ["warn", "starting"],
  backing_off: ["bad", "backing off"],
  failed: ["bad", "failed"],
  stopping: ["idle", "stopping"],
  stopped: ["idle", "stopped"],
  disabled: ["idle", "disabled"],
};

export const stateOf = (state: string): [Tone, string] => STATES[state] ?? ["warn", state];

/** The state of a server as a person cares for it: one that is ready but left alone is not well. */
export function healthOf(server: { state: string; breaker?: string; open_tools?: number }): [Tone, string] {
  if (server.state === "ready" && server.breaker && server.breaker !== "closed") return ["bad", "breaker open"];
  if (server.state === "ready" && server.open_tools) return ["warn", "degraded"];
  return stateOf(server.state);
}

export function toneOf(outcome: string): Tone {
  if (outcome === "ok") return "good";
  return outcome === "tool_error" || outcome === "cancelled" ? "warn" : "bad";
}

export const outcomeOf = (outcome: string) => (outcome === "tool_error" ? "tool error" : outcome);

/** A word that a person wrote, for a shell. */
export const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
