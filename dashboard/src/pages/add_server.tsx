import { useState } from "react";
import { get, waitUntil } from "../api";
import { refresh } from "../live";
import { Copyable, Tabs } from "../components/common";
import { SaveButton, type Written } from "../components/save_dialog";
import { Link, go, path } from "../route";
import type { Overview } from "../types";

type Entry = Record<string, unknown>;
const TABS: [string, string][] = [["url", "Address"], ["command", "Command"], ["json", "JSON"]];
const NAME = /^[a-z0-9]+(?:-[a-z0-9]+)*$/;

/** Page that adds a server to the config file. */
export function AddServer() {
  const [kind, setKind] = useState("url");
  const [name, setName] = useState("");
  const [url, setUrl] = useState("");
  const [headers, setHeaders] = useState("");
  const [command, setCommand] = useState("");
  const [args, setArgs] = useState("");
  const [env, setEnv] = useState("");
  const [text, setText] = useState("");
  const [untrusted, setUntrusted] = useState<{ name: string; hint: string } | null>(null);
  const pasted = kind === "json" ? parsePasted(text) : null;
  const shownName = name || pasted?.name || "";
  const entry = (): Entry => {
    if (pasted) return pasted.entry;
    if (kind === "url") return { url: url.trim(), ...nonEmpty("headers", pairs(headers, ":")) };
    return { command: command.trim(), ...(lines(args).length ? { args: lines(args) } : {}), ...nonEmpty("env", pairs(env, "=")) };
  };
  const problem = findProblem(shownName, kind, kind === "url" ? url : kind === "command" ? command : text, pasted);
  const done = async (written: Written) => {
    if (written.needs_review) setUntrusted({ name: shownName, hint: written.hint ?? "" });
    else go((await isKnown(shownName)) ? path("servers", shownName) : "/servers");
    await refresh();
  };
  if (untrusted) {
    return (
      <div className="page">
        <h1>{untrusted.name} needs your review</h1>
        <p className="prose">The entry is in the config file. It runs a command or sends a secret, so Toolway uses it only after you review it in a terminal on the gateway machine:</p>
        <Copyable text={untrusted.hint} />
        <p><Link to="/servers">All servers</Link> · <Link to="/config">Config</Link></p>
      </div>
    );
  }
  return (
    <div className="page">
      <h1>Add a server</h1>
      <p className="prose">It goes into the config file, and you can roll that back on the Config page. To add variables and secrets such as {"${TOKEN}"}, use a terminal: <code>toolway add</code>. The config file sets which commands you can add here: <code>toolway.gateway.allowedCommands</code>.</p>
      <section className="card" aria-label="New server">
        <Tabs label="Kind of server" tabs={TABS} selected={kind} onSelect={setKind} />
        <div className="form">
          <Field id="name" title="Name" note="lowercase letters, digits, and hyphens" value={name} change={setName} placeholder={pasted?.name ?? ""} />
          {kind === "url" && (
            <>
              <Field id="url" title="Address" note="for example https://mcp.example.com/mcp" value={url} change={setUrl} />
              <Area id="headers" title="Headers" note="one per line: Authorization: Bearer …" value={headers} change={setHeaders} />
            </>
          )}
          {kind === "command" && (
            <>
              <Field id="command" title="Command" note="just the program: npx, uvx, or a path" value={command} change={setCommand} />
              <Area id="args" title="Arguments" note="one per line" value={args} change={setArgs} />
              <Area id="env" title="Variables" note="one per line: NAME=value" value={env} change={setEnv} />
            </>
          )}
          {kind === "json" && <Area id="entry" title="Entry" note="an entry of mcpServers, or a whole file with one server" value={text} change={setText} rows={10} />}
        </div>
        <div className="actions">
          <SaveButton title={`Add ${shownName}?`} disabled={problem !== ""} change={() => ({ method: "put", path: `config/servers/${encodeURIComponent(shownName)}`, body: entry() })} done={done}>Review and add</SaveButton>
          <Link to="/servers">Cancel</Link>
          <span className="muted" role="status">{problem}</span>
        </div>
      </section>
    </div>
  );
}

const isKnown = (name: string) => waitUntil(async () => (await get<Overview>("overview")).servers.some((each) => each.server === name));

function Field({ id, title, note, value, change, placeholder = "" }: { id: string; title: string; note: string; value: string; change: (value: string) => void; placeholder?: string }) {
  return (
    <div className="field">
      <label htmlFor={`new-${id}`}>{title} <small>{note}</small></label>
      <input id={`new-${id}`} type="text" autoComplete="off" spellCheck={false} placeholder={placeholder} value={value} onChange={(event) => change(event.target.value)} />
    </div>
  );
}

export function Area({ id, title, note, value, change, rows = 3 }: { id: string; title: string; note: string; value: string; change: (value: string) => void; rows?: number }) {
  return (
    <div className="field">
      <label htmlFor={`new-${id}`}>{title} <small>{note}</small></label>
      <textarea id={`new-${id}`} rows={rows} spellCheck={false} value={value} onChange={(event) => change(event.target.value)} />
    </div>
  );
}

export const lines = (text: string) => text.split("\n").map((each) => each.trim()).filter(Boolean);

function pairs(text: string, separator: string): Record<string, string> {
  const split = lines(text).map((line): [string, string] => {
    const at = line.indexOf(separator);
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return Object.fromEntries(split);
}

const nonEmpty = (key: string, values: Record<string, string>): Entry => (Object.keys(values).length ? { [key]: values } : {});

/** Return entry and name in pasted JSON: of an entry, or of a file with one server; null if it is neither. */
function parsePasted(text: string): { name: string; entry: Entry } | null {
  try {
    const value = JSON.parse(text) as Entry;
    const map = value.mcpServers ?? value.servers;
    if (map !== null && typeof map === "object") {
      const [first, ...more] = Object.entries(map as Record<string, Entry>);
      return first && !more.length ? { name: first[0], entry: first[1] } : null;
    }
    return value !== null && typeof value === "object" && !Array.isArray(value) ? { name: "", entry: value } : null;
  } catch {
    return null;
  }
}

function findProblem(name: string, kind: string, main: string, pasted: { entry: Entry } | null): string {
  if (!main.trim()) return "";
  if (kind === "json" && !pasted) return "Paste a JSON object with one server.";
  if (!name) return "Enter a name.";
  return NAME.test(name) ? "" : "Use only lowercase letters, digits, and hyphens.";
}
