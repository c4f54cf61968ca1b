import { useState } from "react";
import { get, waitUntil } from "../api";
import { refresh } from "../live";
import type { Endpoints, Group } from "../types";
import { Area, lines } from "../pages/add_server";
import { SaveButton } from "./save_dialog";

const NAME = /^[\w-]{1,64}$/;

/** Form that adds a group to the config file, or changes or removes `group`. */
export function GroupEditor({ group, done }: { group: Group | null; done: (name: string) => void }) {
  const [name, setName] = useState("");
  const [patterns, setPatterns] = useState(group?.patterns.join("\n") ?? "");
  const [search, setSearch] = useState(group?.search ?? false);
  const target = group?.name ?? name.trim();
  const path = `config/groups/${encodeURIComponent(target)}`;
  const written = async (now: string, tools: string[]) => {
    const isApplied = async () => {
      const found = (await get<Endpoints>("groups")).groups.find((each) => each.name === target);
      return now ? found?.patterns.join("\n") === tools.join("\n") : !found;
    };
    await waitUntil(isApplied);
    done(now);
    await refresh();
  };
  return (
    <section className="card" aria-label={group ? `Edit ${group.name}` : "New group"}>
      <h2>{group ? `Edit ${group.name}` : "New group"}</h2>
      <div className="form">
        {!group && (
          <div className="field">
            <label htmlFor="group-name">Name <small>letters, digits, - and _; part of the endpoint</small></label>
            <input id="group-name" type="text" autoComplete="off" spellCheck={false} value={name} onChange={(event) => setName(event.target.value)} />
          </div>
        )}
        <Area id="patterns" title="Tools" note="one pattern per line, for example github.* or !github.delete_*" value={patterns} change={setPatterns} rows={5} />
        <label className="inline"><input type="checkbox" checked={search} onChange={(event) => setSearch(event.target.checked)} /> Clients find tools by search</label>
      </div>
      <div className="actions">
        <SaveButton title={`Save ${target}?`} disabled={!NAME.test(target) || !lines(patterns).length} change={() => ({ method: "put", path, body: { tools: lines(patterns), search } })} done={() => written(target, lines(patterns))}>Review and save</SaveButton>
        {group && <SaveButton danger typed={group.name} title={`Remove ${group.name}?`} change={() => ({ method: "delete", path })} done={() => written("", [])}>Remove group</SaveButton>}
      </div>
    </section>
  );
}
