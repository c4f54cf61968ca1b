// The way to `/admin`: a cookie that scripts cannot read, and a key that only this address has.

const PLACE = "toolway-page";

export class Failure extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly evidence = "",
    readonly fix = "",
    readonly code = "",
  ) {
    super(message);
  }
}

function headers(): Record<string, string> {
  const page = localStorage.getItem(PLACE);
  return page ? { "x-toolway-page": page } : {};
}

async function failure(response: Response): Promise<Failure> {
  const body = (await response.json().catch(() => ({}))) as { error?: Record<string, string> };
  const said = body.error ?? {};
  return new Failure(response.status, said.what ?? `status ${response.status}`, said.evidence, said.fix, said.code);
}

async function ask<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path ? `/admin/${path}` : "/admin", {
      method,
      headers: body === undefined ? headers() : { ...headers(), "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure(0, "the gateway does not answer", String(error), "is it running? toolway serve");
  }
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => ask<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}, signal?: AbortSignal) => ask<T>("POST", path, body, signal);
export const remove = <T>(path: string) => ask<T>("DELETE", path);

/** Hand in a code or a token, and become a session. */
export async function enter(proof: { code: string } | { token: string }): Promise<void> {
  const field: Record<string, string> =
    "code" in proof ? { "x-toolway-code": proof.code } : { authorization: `Bearer ${proof.token}` };
  const response = await fetch("/dashboard/session", { method: "POST", headers: field });
  if (!response.ok) throw await failure(response);
  localStorage.setItem(PLACE, ((await response.json()) as { page: string }).page);
}

export async function leave(): Promise<void> {
  localStorage.removeItem(PLACE);
  await fetch("/dashboard/session", { method: "DELETE" });
}

/** Follow what happens, until the signal. Reads the stream by hand, because an EventSource can send no header. */
export async function follow(tell: (name: string, data: unknown) => void, signal: AbortSignal): Promise<void> {
  const response = await fetch("/admin/events", { headers: { ...headers(), accept: "text/event-stream" }, signal });
  if (!response.ok || !response.body) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part)?.[1];
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (name && data) tell(name, JSON.parse(data));
    }
  }
}
