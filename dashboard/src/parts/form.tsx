// A form for the arguments of a tool. What has no simple field is written as JSON.

import { useId, useState } from "react";
import type { Schema } from "../types";

type Arguments = Record<string, unknown>;

/** What a form begins with: what the schema says is usual. */
export function filled(schema: Schema | undefined): Arguments {
  const found: Arguments = {};
  for (const [name, field] of Object.entries(schema?.properties ?? {})) {
    if (field.default !== undefined && field.default !== null) found[name] = field.default;
  }
  return found;
}

export function Form({ schema, value, change, run }: {
  schema: Schema;
  value: Arguments;
  change: (value: Arguments) => void;
  run: () => void;
}) {
  const fields = Object.entries(schema.properties ?? {});
  const set = (name: string) => (next: unknown) => {
    const { [name]: _, ...rest } = value;
    change(next === undefined ? rest : { ...rest, [name]: next });
  };
  if (!fields.length) return <p className="muted">It takes no arguments that its schema names.</p>;
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        run();
      }}
    >
      {fields.map(([name, field]) => (
        <Field key={name} name={name} schema={field} needed={schema.required?.includes(name) ?? false} value={value[name]} set={set(name)} />
      ))}
      <button type="submit" className="hidden" tabIndex={-1}>Call</button>
    </form>
  );
}

function typeOf(schema: Schema): string {
  const types = (Array.isArray(schema.type) ? schema.type : [schema.type]).filter((type) => type && type !== "null");
  return types.length === 1 ? (types[0] as string) : "";
}

function Field({ name, schema, needed, value, set }: {
  name: string;
  schema: Schema;
  needed: boolean;
  value: unknown;
  set: (value: unknown) => void;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{name}{needed && <span className="needed" title="needed"> *</span>} <small>{typeOf(schema) || "JSON"}</small></label>
      <Input id={id} schema={schema} value={value} set={set} />
      {schema.description && <small className="muted">{schema.description}</small>}
    </div>
  );
}

function Input({ id, schema, value, set }: { id: string; schema: Schema; value: unknown; set: (value: unknown) => void }) {
  const type = typeOf(schema);
  if (Array.isArray(schema.enum)) {
    const at = schema.enum.findIndex((each) => each === value);
    return (
      <select id={id} value={at} onChange={(event) => set(schema.enum?.[Number(event.target.value)])}>
        <option value={-1}>–</option>
        {schema.enum.map((each, index) => <option key={index} value={index}>{String(each)}</option>)}
      </select>
    );
  }
  if (type === "boolean") {
    return (
      <select id={id} value={value === undefined ? "" : String(value)} onChange={(event) => set(event.target.value === "" ? undefined : event.target.value === "true")}>
        <option value="">–</option>
        <option value="true">true</option>
        <option value="false">false</option>
      </select>
    );
  }
  if (type === "integer" || type === "number") {
    return (
      <input id={id} type="number" step={type === "integer" ? 1 : "any"} value={typeof value === "number" ? value : ""} onChange={(event) => set(event.target.value === "" ? undefined : Number(event.target.value))} />
    );
  }
  if (type === "string") {
    const text = typeof value === "string" ? value : "";
    const change = (event: { target: { value: string } }) => set(event.target.value === "" ? undefined : event.target.value);
    return text.includes("\n") || text.length > 80 ? <textarea id={id} rows={4} value={text} onChange={change} /> : <input id={id} type="text" value={text} onChange={change} />;
  }
  return <Written id={id} value={value} set={set} />;
}

function Written({ id, value, set }: { id: string; value: unknown; set: (value: unknown) => void }) {
  const [text, setText] = useState<string | null>(null);
  const [wrong, setWrong] = useState(false);
  return (
    <textarea
      id={id}
      rows={3}
      spellCheck={false}
      aria-invalid={wrong}
      placeholder="JSON"
      value={text ?? (value === undefined ? "" : JSON.stringify(value, null, 2))}
      onBlur={() => !wrong && setText(null)}
      onChange={(event) => {
        setText(event.target.value);
        try {
          set(event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value));
          setWrong(false);
        } catch {
          setWrong(true);
        }
      }}
    />
  );
}
