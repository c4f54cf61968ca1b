// Form for the arguments of a tool. Values without a simple input field are edited as JSON.

import { useId, useState } from "react";
import type { Schema } from "../types";

type Arguments = Record<string, unknown>;

/** Return the default values of the schema. */
export function defaultArguments(schema: Schema | undefined): Arguments {
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
  if (!fields.length) return <p className="muted">The schema has no arguments.</p>;
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        run();
      }}
    >
      {fields.map(([name, field]) => (
        <Field key={name} name={name} schema={field} required={schema.required?.includes(name) ?? false} value={value[name]} set={set(name)} />
      ))}
      <button type="submit" className="hidden" tabIndex={-1}>Call</button>
    </form>
  );
}

function typeOf(schema: Schema): string {
  const types = (Array.isArray(schema.type) ? schema.type : [schema.type]).filter((type) => type && type !== "null");
  return types.length === 1 ? (types[0] as string) : "";
}

function Field({ name, schema, required, value, set }: {
  name: string;
  schema: Schema;
  required: boolean;
  value: unknown;
  set: (value: unknown) => void;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{name}{required && <span className="required" title="required"> *</span>} <small>{typeOf(schema) || "JSON"}</small></label>
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
  return <JsonInput id={id} value={value} set={set} />;
}

function JsonInput({ id, value, set }: { id: string; value: unknown; set: (value: unknown) => void }) {
  const [text, setText] = useState<string | null>(null);
  const [invalid, setInvalid] = useState(false);
  return (
    <textarea
      id={id}
      rows={3}
      spellCheck={false}
      aria-invalid={invalid}
      placeholder="JSON"
      value={text ?? (value === undefined ? "" : JSON.stringify(value, null, 2))}
      onBlur={() => !invalid && setText(null)}
      onChange={(event) => {
        setText(event.target.value);
        try {
          set(event.target.value.trim() === "" ? undefined : JSON.parse(event.target.value));
          setInvalid(false);
        } catch {
          setInvalid(true);
        }
      }}
    />
  );
}
