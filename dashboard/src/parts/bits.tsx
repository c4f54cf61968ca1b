// Small pieces that all pages share. Text of servers is only ever text here: React escapes it, and nothing parses it.

import { type ReactNode, memo, useEffect, useId, useRef, useState } from "react";
import type { Failure } from "../api";
import type { Happening } from "../types";
import { type Tone, healthOf, outcomeOf, quoted, stateOf, toneOf } from "../words";

const GLYPH: Record<Tone, string> = { good: "●", warn: "▲", bad: "✕", idle: "○" };

export function Mark({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`mark ${tone}`}>
      <span aria-hidden="true">{GLYPH[tone]}</span> {children}
    </span>
  );
}

export function Health({ of }: { of: Parameters<typeof healthOf>[0] }) {
  const [tone, word] = healthOf(of);
  return <Mark tone={tone}>{word}</Mark>;
}

export const Outcome = ({ of }: { of: string }) => <Mark tone={toneOf(of)}>{outcomeOf(of)}</Mark>;

/** A sentence without the word that stands before it already. */
const after = (text: string, word: string) => (text.startsWith(word) ? text.slice(word.length).replace(/^[,:\s]+/, "") : text);

/** A happening in its own words; a change of state with the mark of the state. */
export function Happened({ of }: { of: Happening }) {
  if (!of.state) return <span>{of.text}</span>;
  const [tone, word] = stateOf(of.state);
  return (
    <span>
      <Mark tone={tone}>{word}</Mark> <span className="muted">{after(of.text, word)}</span>
    </span>
  );
}

/** Bars of counts, one path for all: a list has hundreds of them. */
export const Spark = memo(function Spark({ values, errors, label }: { values: number[]; errors: number[]; label: string }) {
  const top = Math.max(1, ...values);
  const height = (value: number) => (value ? Math.max(1.5, (18 * value) / top) : 0);
  const bars = (counts: number[]) =>
    counts.map((value, at) => (value ? `M${at * 4} 20v${-height(value).toFixed(1)}h3v${height(value).toFixed(1)}z` : "")).join("");
  return (
    <svg className="spark" viewBox={`0 0 ${values.length * 4} 20`} role="img" aria-label={label} preserveAspectRatio="none">
      <path className="calls" d={bars(values)} />
      <path className="errors" d={bars(errors)} />
    </svg>
  );
});

/** How much of the most something is; the number stands beside it. */
export function Share({ of, most }: { of: number; most: number }) {
  return <span className="share" aria-hidden="true"><span style={{ width: `${(100 * of) / Math.max(1, most)}%` }} /></span>;
}

export function Problem({ of }: { of: Failure }) {
  return (
    <div className="problem" role="alert">
      <strong>{of.message}</strong>
      {of.evidence && <p>{of.evidence}</p>}
      {of.fix && <p className="fix">→ {of.fix}</p>}
      {of.code && <code>{of.code}</code>}
    </div>
  );
}

export function Empty({ title, command, children }: { title: string; command?: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p>{title}</p>
      {children}
      {command && <Copyable text={command} />}
    </div>
  );
}

export function Copyable({ text, block = false }: { text: string; block?: boolean }) {
  return (
    <span className={block ? "copyable block" : "copyable"}>
      {block ? <pre tabIndex={0}>{text}</pre> : <code>{text}</code>}
      <Copy text={text} />
    </span>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, set] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => set(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <button type="button" className="quiet" aria-label={done ? undefined : `${label}: ${text.slice(0, 80)}`} onClick={() => void navigator.clipboard.writeText(text).then(() => set(true))}>
      {done ? "Copied" : label}
    </button>
  );
}

/** What a server or a person can do about it: where it names a command of ours, it can be copied. */
export function Fix({ text }: { text: string }) {
  if (!text) return null;
  const command = /\btoolway [a-z][^;,()]*/.exec(text)?.[0]?.trim();
  return (
    <p className="fix">
      <span aria-hidden="true">→ </span>
      {text} {command && <Copy text={command} />}
    </p>
  );
}

export function Tabs({ tabs, chosen, choose, label }: {
  tabs: [id: string, title: ReactNode][];
  chosen: string;
  choose: (id: string) => void;
  label: string;
}) {
  const at = useRef<HTMLDivElement>(null);
  const move = (by: number) => {
    const now = tabs.findIndex(([id]) => id === chosen);
    const next = tabs[(now + by + tabs.length) % tabs.length];
    if (next) choose(next[0]);
    requestAnimationFrame(() => at.current?.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
  };
  return (
    <div
      ref={at}
      role="tablist"
      aria-label={label}
      className="tabs"
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") move(1);
        else if (event.key === "ArrowLeft") move(-1);
      }}
    >
      {tabs.map(([id, title]) => (
        <button
          key={id}
          type="button"
          role="tab"
          aria-selected={id === chosen}
          tabIndex={id === chosen ? 0 : -1}
          onClick={() => choose(id)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}

/** A question before something that matters, and what came of it. */
export function Ask({ title, text, yes, danger = true, act, children }: {
  title: string;
  text: string;
  yes: string;
  danger?: boolean;
  act: () => Promise<unknown>;
  children: (open: () => void) => ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Failure | null>(null);
  const name = useId();
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await act();
      dialog.current?.close();
    } catch (failed) {
      setError(failed as Failure);
    }
    setBusy(false);
  };
  return (
    <>
      {children(() => dialog.current?.showModal())}
      <dialog ref={dialog} aria-labelledby={name}>
        <h2 id={name}>{title}</h2>
        <p>{text}</p>
        {error && <Problem of={error} />}
        <div className="actions">
          <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
          <button type="button" className={danger ? "danger" : "primary"} disabled={busy} onClick={() => void confirm()}>
            {busy ? "…" : yes}
          </button>
        </div>
      </dialog>
    </>
  );
}

/** A button that does something, and shows what went wrong beside it. */
export function Act({ act, children, className = "" }: { act: () => Promise<unknown>; children: ReactNode; className?: string }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Failure | null>(null);
  const run = async () => {
    setBusy(true);
    setError(null);
    await act().catch((failed: Failure) => setError(failed));
    setBusy(false);
  };
  return (
    <>
      <button type="button" className={className} disabled={busy} onClick={() => void run()}>
        {busy ? "…" : children}
      </button>
      {error && <Problem of={error} />}
    </>
  );
}

export function Json({ of }: { of: unknown }) {
  return <pre className="json" tabIndex={0}>{typeof of === "string" ? of : JSON.stringify(of, null, 2)}</pre>;
}

/** The command that makes a call. */
export function commandOf(server: string, tool: string, args: Record<string, unknown>): string {
  const words = Object.entries(args).map(([key, value]) =>
    typeof value === "string" ? quoted(`${key}=${value}`) : quoted(`${key}:=${JSON.stringify(value)}`),
  );
  return ["toolway call", quoted(`${server}.${tool}`), ...words].join(" ");
}
