// Result of a tool call. Images and audio only of types that a browser shows without running scripts.

import { setQuery } from "../route";
import type { Block, Result } from "../types";
import { formatSeconds } from "../format";
import { JsonView, Badge } from "./common";

const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const AUDIO_TYPES = new Set(["audio/wav", "audio/mpeg", "audio/ogg", "audio/mp4"]);
const MAX_TEXT_CHARS = 100_000;

export function ResultView({ result }: { result: Result }) {
  const { content, structuredContent, isError } = result.result;
  return (
    <section className="result" aria-label="Result" aria-live="polite">
      <p>
        {isError ? <Badge tone="warn">tool error</Badge> : <Badge tone="good">success</Badge>} in {formatSeconds(result.seconds)}
        {result.attempts > 1 && `, after ${result.attempts} attempts`}{" · "}
        <button type="button" className="linklike" onClick={() => setQuery({ call: result.id }, "push")}>{result.id}</button>
      </p>
      {(Array.isArray(content) ? content : []).map((block, at) => <ContentBlock key={at} block={block} />)}
      {structuredContent !== undefined && (<><h3>Structured content</h3><JsonView value={structuredContent} /></>)}
      {!content && <JsonView value={result.result} />}
    </section>
  );
}

function ContentBlock({ block }: { block: Block }) {
  const kind = block.mimeType ?? "";
  if (block.type === "text") return <TextBlock text={block.text ?? ""} />;
  if (block.type === "image" && IMAGE_TYPES.has(kind)) return <img src={`data:${kind};base64,${block.data}`} alt="image returned by the tool" />;
  if (block.type === "audio" && AUDIO_TYPES.has(kind)) return <audio controls src={`data:${kind};base64,${block.data}`} />;
  if (block.type === "resource" && typeof block.resource?.text === "string") return <TextBlock text={block.resource.text} />;
  return <JsonView value={block} />;
}

function TextBlock({ text }: { text: string }) {
  return (
    <pre tabIndex={0}>
      {text.slice(0, MAX_TEXT_CHARS)}
      {text.length > MAX_TEXT_CHARS && `\n… ${text.length - MAX_TEXT_CHARS} more characters`}
    </pre>
  );
}
