// Formatting of numbers, times, states, and outcomes.

import type { OutcomeWord } from "./types";

export type Tone = "good" | "warn" | "bad" | "idle";

export function formatSeconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return formatSpan(value);
}

export function formatSpan(value: number): string {
  const total = Math.round(value);
  if (total < 100) return `${total} s`;
  if (total < 5400) return `${Math.round(total / 60)} min`;
  if (total < 172_800) return `${Math.round(total / 3600)} h`;
  return `${Math.round(total / 86_400)} d`;
}

export const formatAge = (at: number, now = Date.now() / 1000) => `${formatSpan(Math.max(0, now - at))} ago`;

export function formatTime(at: number): string {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return today ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

export function formatCount(value: number): string {
  if (value < 1000) return String(value);
  if (value < 1e6) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}

export const formatShare = (part: number, whole: number) =>
  whole ? `${((100 * part) / whole).toFixed(part && part / whole < 0.1 ? 1 : 0)} %` : "–";

const MIN_CALLS_FOR_SHARE = 20; // a share of fewer calls says nothing

/** Format failed calls: a share of many calls, the counts of few. */
export const formatFailures = (failed: number, calls: number) => (calls >= MIN_CALLS_FOR_SHARE || !failed ? formatShare(failed, calls) : `${failed} of ${calls}`);

/** Return the color of a number of failed calls: red from one in twenty. */
export const failureTone = (failed: number, calls: number) => (!failed ? "" : calls >= MIN_CALLS_FOR_SHARE && failed / calls >= 0.05 ? "bad" : "warn");

/** Format a price in USD; null is a price that is not known. */
export const formatUsd = (value: number | null) => (value === null ? "price unknown" : `$${value.toFixed(value && value < 0.1 ? 4 : 2)}`);

/** Estimate the tokens that a definition of this many characters costs a model of OpenAI (o200k_base). */
export const estimateTokens = (size: number) => Math.round(size / 4.4);

export const TOKENS = "tokens (OpenAI)"; // what the counts are for

const STATES: Record<string, Tone> = { ready: "good", starting: "warn", idle: "idle", down: "bad", disabled: "idle" };

export const serverState = (state: string): [Tone, string] => [STATES[state] ?? "warn", state];

/** Return the health of a server: its state, in the color of its circuit breakers. Why has the reason. */
export function serverHealth(server: { state: string; breaker?: string; open_tools?: number }): [Tone, string] {
  const [tone, word] = serverState(server.state);
  if (server.state !== "ready") return [tone, word];
  if (server.breaker && server.breaker !== "closed") return ["bad", word];
  return [server.open_tools ? "warn" : tone, word];
}

/** Colors of call outcomes. The gateway says which one a call has, and whether it counts as failed. */
export const OUTCOME_TONES: Record<OutcomeWord, Tone> = { ok: "good", "tool error": "warn", "not run": "bad", unknown: "bad", waiting: "idle" };

/** Return the words that a tool was found by, the most important first. */
export const formatReasons = (tool: { reasons: { kind: string; text: string; weight: number }[] }) =>
  [...tool.reasons].sort((a, b) => b.weight - a.weight).slice(0, 6).map((each) => each.text || each.kind).join(", ");

/** Quote a word for a shell, if necessary. */
export const shellQuote = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
