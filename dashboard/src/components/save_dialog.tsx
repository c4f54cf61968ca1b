// A change of the config file: its diff is shown first, and applied after a confirmation.

import { type ReactNode, useId, useRef, useState } from "react";
import { type ApiError, put, post, remove } from "../api";
import { ErrorBox } from "./common";

/** Diff with added and removed lines in color. */
export function Diff({ text }: { text: string }) {
  return (
    <pre className="diff" tabIndex={0}>
      {text.split("\n").map((line, at) => <span key={at} className={lineClass(line)}>{`${line}\n`}</span>)}
    </pre>
  );
}

function lineClass(line: string): string {
  if (line.startsWith("+++") || line.startsWith("---")) return "name";
  return { "+": "added", "-": "removed", "@": "position" }[line[0] ?? ""] ?? "";
}

export interface Change {
  method: "put" | "post" | "delete";
  path: string; // below /admin
  body?: unknown;
}

export interface Written {
  diff?: string;
  needs_review?: boolean;
  hint?: string;
  problems?: string[];
}

function send(change: Change, query = ""): Promise<Written> {
  const target = `${change.path}${query}`;
  if (change.method === "delete") return remove<Written>(target);
  return change.method === "put" ? put<Written>(target, change.body) : post<Written>(target, change.body);
}

/** Button that checks a change, shows its diff, and saves it. Errors of the check are shown next to the button. */
export function SaveButton({ change, title, done, disabled = false, danger = false, typed, children }: {
  change: () => Change;
  title: string;
  done: (written: Written) => void | Promise<void>;
  disabled?: boolean;
  danger?: boolean;
  typed?: string; // a name that the user must type
  children: ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [diff, setDiff] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const [entered, setEntered] = useState("");
  const name = useId();
  const attempt = async (action: () => Promise<void>) => {
    setBusy(true);
    setError(null);
    await action().catch((failed: ApiError) => {
      dialog.current?.close();
      setError(failed);
    });
    setBusy(false);
  };
  const preview = () =>
    attempt(async () => {
      setDiff((await send(change(), "?preview=1")).diff ?? "");
      setEntered("");
      dialog.current?.showModal();
    });
  const save = () =>
    attempt(async () => {
      const written = await send(change());
      dialog.current?.close();
      await done(written);
    });
  return (
    <>
      <button type="button" className={danger ? "danger" : "primary"} disabled={busy || disabled} onClick={() => void preview()}>{busy ? "…" : children}</button>
      {error && <ErrorBox error={error} />}
      <dialog ref={dialog} className="review" aria-labelledby={name}>
        <h2 id={name}>{title}</h2>
        {diff ? <Diff text={diff} /> : <p>The config file stays the same.</p>}
        {typed && <label className="field">Type {typed} to confirm<input type="text" autoComplete="off" spellCheck={false} value={entered} onChange={(event) => setEntered(event.target.value)} /></label>}
        <div className="actions">
          <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
          <button type="button" className={danger ? "danger" : "primary"} disabled={busy || !diff || (typed !== undefined && entered.trim() !== typed)} onClick={() => void save()}>{busy ? "…" : "Save in the config file"}</button>
        </div>
      </dialog>
    </>
  );
}
