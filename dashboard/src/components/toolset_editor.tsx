import { useState } from "react";
import { get, waitUntil } from "../api";
import { refresh } from "../live";
import type { Endpoints, Toolset } from "../types";
import { Area, lines } from "../pages/add_server";
import { SaveButton } from "./save_dialog";

const NAME = /^[\w-]{1,64}$/;

/** Form that adds a toolset to the config file, or changes or removes `toolset`. */
export function ToolsetEditor({ toolset, done }: { toolset: Toolset | null; done: (name: string) => void }) {
  const [name, setName] = useState("");
  const [patterns, setPatterns] = useState(toolset?.patterns.join("\n") ?? "");
  const [search, setSearch] = useState(toolset?.search ?? false);
  const target = toolset?.name ?? name.trim();
  const path = `config/toolsets/${encodeURIComponent(target)}`;
  const written = async (now: string, tools: string[]) => {
    const isApplied = async () => {
      const found = (await get<Endpoints>("toolsets")).toolsets.find((each) => each.name === target);
      return now ? found?.patterns.join("\n") === tools.join("\n") : !found;
    };
    await waitUntil(isApplied);
    done(now);
    await refresh();
  };
  return (
    <section className="card" aria-label={toolset ? `Edit ${toolset.name}` : "New toolset"}>
      <h2>{toolset ? `Edit ${toolset.name}` : "New toolset"}</h2>
      <div className="form">
        {!toolset && (
          <div className="field">
            <label htmlFor="toolset-name">Name <small>letters, digits, - and _; part of the endpoint</small></label>
            <input id="toolset-name" type="text" autoComplete="off" spellCheck={false} value={name} onChange={(event) => setName(event.target.value)} />
          </div>
        )}
        <Area id="patterns" title="Tools" note="one pattern per line, for example github.* or !github.delete_*" value={patterns} change={setPatterns} rows={5} />
        <label className="inline"><input type="checkbox" checked={search} onChange={(event) => setSearch(event.target.checked)} /> Clients find tools by search</label>
      </div>
      <div className="actions">
        <SaveButton title={`Save ${target}?`} disabled={!NAME.test(target) || !lines(patterns).length} change={() => ({ method: "put", path, body: { tools: lines(patterns), search } })} done={() => written(target, lines(patterns))}>Review and save</SaveButton>
        {toolset && <SaveButton danger typed={toolset.name} title={`Remove ${toolset.name}?`} change={() => ({ method: "delete", path })} done={() => written("", [])}>Remove toolset</SaveButton>}
      </div>
    </section>
  );
}
