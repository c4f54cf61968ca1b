// Components that all pages share. Text from servers is always rendered as text: React escapes it, and nothing parses it.

import { type ReactNode, memo, useEffect, useId, useRef, useState } from "react";
import type { ApiError } from "../api";
import type { GatewayEvent, OutcomeWord } from "../types";
import { type Tone, OUTCOME_TONES, serverHealth, shellQuote, serverState } from "../format";

const GLYPH: Record<Tone, string> = { good: "●", warn: "▲", bad: "✕", idle: "○" };

export function Badge({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`badge ${tone}`}>
      <span aria-hidden="true">{GLYPH[tone]}</span> {children}
    </span>
  );
}

export function Health({ server }: { server: Parameters<typeof serverHealth>[0] }) {
  const [tone, word] = serverHealth(server);
  return <Badge tone={tone}>{word}</Badge>;
}

export const Outcome = ({ of }: { of: { outcome: OutcomeWord } }) => <Badge tone={OUTCOME_TONES[of.outcome]}>{of.outcome}</Badge>;

/** Remove a leading word that is already shown before the text. */
const withoutPrefix = (text: string, word: string) => (text.startsWith(word) ? text.slice(word.length).replace(/^[,:\s]+/, "") : text);

/** Text of an event; a state change with the badge of the new state. */
export function EventText({ event }: { event: GatewayEvent }) {
  if (!event.state) return <span>{event.text}</span>;
  const [tone, word] = serverState(event.state);
  return (
    <span>
      <Badge tone={tone}>{word}</Badge> <span className="muted">{withoutPrefix(event.text, word)}</span>
    </span>
  );
}

/** Bar chart of counts. One path for all bars, because a table has hundreds of charts. */
export const Sparkline = memo(function Sparkline({ values, errors, label }: { values: number[]; errors: number[]; label: string }) {
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

/** Bar with the proportion of a value to the maximum. Hidden from screen readers: the number is next to it. */
export function ProportionBar({ value, max }: { value: number; max: number }) {
  return <span className="proportion" aria-hidden="true"><span style={{ width: `${(100 * value) / Math.max(1, max)}%` }} /></span>;
}

export function ErrorBox({ error }: { error: ApiError }) {
  return (
    <div className="error" role="alert">
      <strong>{error.message}</strong>
      {error.detail && <p>{error.detail}</p>}
      {error.hint && <p className="hint">→ {error.hint}</p>}
      {error.code && <code>{error.code}</code>}
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
      <CopyButton text={text} />
    </span>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
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

/** Hint that resolves a problem. If it contains a toolway command, the command can be copied. */
export function Hint({ text }: { text: string }) {
  if (!text) return null;
  const command = /\btoolway [a-z][^;,()]*/.exec(text)?.[0]?.trim();
  return (
    <p className="hint">
      <span aria-hidden="true">→ </span>
      {text} {command && <CopyButton text={command} />}
    </p>
  );
}

export function Tabs({ tabs, selected, onSelect, label }: {
  tabs: [id: string, title: ReactNode][];
  selected: string;
  onSelect: (id: string) => void;
  label: string;
}) {
  const element = useRef<HTMLDivElement>(null);
  const move = (by: number) => {
    const now = tabs.findIndex(([id]) => id === selected);
    const next = tabs[(now + by + tabs.length) % tabs.length];
    if (next) onSelect(next[0]);
    requestAnimationFrame(() => element.current?.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
  };
  return (
    <div
      ref={element}
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
          aria-selected={id === selected}
          tabIndex={id === selected ? 0 : -1}
          onClick={() => onSelect(id)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}

/** Confirmation dialog for an action, with the error if the action fails. */
export function ConfirmDialog({ title, text, confirmLabel, danger = true, action, extra, typed, children }: {
  title: string;
  text: string;
  extra?: ReactNode; // more fields
  typed?: string; // a name that the user must type
  confirmLabel: string;
  danger?: boolean;
  action: () => Promise<unknown>;
  children: (open: () => void) => ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const [entered, setEntered] = useState("");
  const name = useId();
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await action();
      setEntered("");
      dialog.current?.close();
    } catch (failed) {
      setError(failed as ApiError);
    }
    setBusy(false);
  };
  return (
    <>
      {children(() => dialog.current?.showModal())}
      <dialog ref={dialog} aria-labelledby={name}>
        <h2 id={name}>{title}</h2>
        <p>{text}</p>
        {extra}
        {typed && <label className="field">Type {typed} to confirm<input type="text" autoComplete="off" spellCheck={false} value={entered} onChange={(event) => setEntered(event.target.value)} /></label>}
        {error && <ErrorBox error={error} />}
        <div className="actions">
          <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
          <button type="button" className={danger ? "danger" : "primary"} disabled={busy || (typed !== undefined && entered.trim() !== typed)} onClick={() => void confirm()}>
            {busy ? "…" : confirmLabel}
          </button>
        </div>
      </dialog>
    </>
  );
}

/** Button that runs an action, and shows its error next to it. */
export function ActionButton({ action, children, className = "" }: { action: () => Promise<unknown>; children: ReactNode; className?: string }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const run = async () => {
    setBusy(true);
    setError(null);
    await action().catch((failed: ApiError) => setError(failed));
    setBusy(false);
  };
  return (
    <>
      <button type="button" className={className} disabled={busy} onClick={() => void run()}>
        {busy ? "…" : children}
      </button>
      {error && <ErrorBox error={error} />}
    </>
  );
}

/** Text of any length; a long one is folded. */
export function FoldedText({ text }: { text: string }) {
  if (text.length <= 600 && text.split("\n").length <= 12) return <pre tabIndex={0}>{text}</pre>;
  return (
    <details className="folded">
      <summary>{text.slice(0, 160).replace(/\s+/g, " ")}… <small className="muted">{text.length.toLocaleString("en")} characters</small></summary>
      <pre tabIndex={0}>{text}</pre>
    </details>
  );
}

export function JsonView({ value }: { value: unknown }) {
  return <pre className="json" tabIndex={0}>{typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre>;
}

/** Return the CLI command that makes a call. */
export function cliCommand(server: string, tool: string, args: Record<string, unknown>): string {
  const words = Object.entries(args).map(([key, value]) =>
    typeof value === "string" ? shellQuote(`${key}=${value}`) : shellQuote(`${key}:=${JSON.stringify(value)}`),
  );
  return ["toolway call", shellQuote(`${server}.${tool}`), ...words].join(" ");
}
