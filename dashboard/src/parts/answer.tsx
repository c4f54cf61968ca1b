// What a tool answered. Pictures and sounds only from the kinds that a browser shows without running anything.

import { setQuery } from "../route";
import type { Block, Result } from "../types";
import { seconds } from "../words";
import { Json, Mark } from "./bits";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const SOUNDS = new Set(["audio/wav", "audio/mpeg", "audio/ogg", "audio/mp4"]);
const LONGEST = 100_000;

export function Answer({ of }: { of: Result }) {
  const { content, structuredContent, isError } = of.result;
  return (
    <section className="answer" aria-label="Answer" aria-live="polite">
      <p>
        {isError ? <Mark tone="warn">the tool says that it failed</Mark> : <Mark tone="good">answered</Mark>} in {seconds(of.seconds)}
        {of.attempts > 1 && `, after ${of.attempts} tries`}{" · "}
        <button type="button" className="linklike" onClick={() => setQuery({ call: of.id }, "push")}>{of.id}</button>
      </p>
      {(Array.isArray(content) ? content : []).map((block, at) => <Piece key={at} of={block} />)}
      {structuredContent !== undefined && (<><h3>Structured</h3><Json of={structuredContent} /></>)}
      {!content && <Json of={of.result} />}
    </section>
  );
}

function Piece({ of }: { of: Block }) {
  const kind = of.mimeType ?? "";
  if (of.type === "text") return <Words of={of.text ?? ""} />;
  if (of.type === "image" && PICTURES.has(kind)) return <img src={`data:${kind};base64,${of.data}`} alt="answer of the tool" />;
  if (of.type === "audio" && SOUNDS.has(kind)) return <audio controls src={`data:${kind};base64,${of.data}`} />;
  if (of.type === "resource" && typeof of.resource?.text === "string") return <Words of={of.resource.text} />;
  return <Json of={of} />;
}

function Words({ of }: { of: string }) {
  return (
    <pre tabIndex={0}>
      {of.slice(0, LONGEST)}
      {of.length > LONGEST && `\n… ${of.length - LONGEST} characters more`}
    </pre>
  );
}
