// Client of `/admin`. A request needs a cookie that scripts cannot read, and a page key that only this origin has.

import { PREFIX } from "./route";

const PAGE_KEY = `toolway-page${PREFIX}`; // name in the local storage

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly detail = "",
    readonly hint = "",
    readonly code = "",
  ) {
    super(message);
  }
}

function headers(): Record<string, string> {
  const page = localStorage.getItem(PAGE_KEY);
  return page ? { "x-toolway-page": page } : {};
}

async function errorFrom(response: Response): Promise<ApiError> {
  const body = (await response.json().catch(() => ({}))) as { error?: Record<string, string> };
  const error = body.error ?? {};
  return new ApiError(response.status, error.message ?? `status ${response.status}`, error.detail, error.hint, error.code);
}

async function request<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`${PREFIX}/admin${path && "/"}${path}`, {
      method,
      headers: body === undefined ? headers() : { ...headers(), "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "gateway does not respond", String(error), "start it: toolway serve");
  }
  if (!response.ok) throw await errorFrom(response);
  return (await response.json()) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => request<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}, signal?: AbortSignal) => request<T>("POST", path, body, signal);
export const put = <T>(path: string, body: unknown) => request<T>("PUT", path, body);
export const remove = <T>(path: string) => request<T>("DELETE", path);

/** Wait until a change of the config file is applied; in a cluster that takes a moment. Return false after 5 s. */
export async function waitUntil(isApplied: () => Promise<boolean>): Promise<boolean> {
  for (let attempt = 0; attempt < 20; attempt++) {
    if (await isApplied()) return true;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  return false;
}

/** Start a session with a one-time code or a token. */
export async function login(proof: { code: string } | { token: string }): Promise<void> {
  const field: Record<string, string> =
    "code" in proof ? { "x-toolway-code": proof.code } : { authorization: `Bearer ${proof.token}` };
  const response = await fetch(`${PREFIX}/dashboard/session`, { method: "POST", headers: field });
  if (!response.ok) throw await errorFrom(response);
  localStorage.setItem(PAGE_KEY, ((await response.json()) as { page: string }).page);
}

export async function logout(): Promise<void> {
  const session = headers();
  localStorage.removeItem(PAGE_KEY);
  await fetch(`${PREFIX}/dashboard/session`, { method: "DELETE", headers: session });
}

/** Read the event stream until it ends or is aborted. An EventSource cannot send headers, so the stream is parsed here. */
export async function streamEvents(onEvent: (name: string, data: unknown) => void, signal: AbortSignal): Promise<void> {
  const response = await fetch(`${PREFIX}/admin/events`, { headers: { ...headers(), accept: "text/event-stream" }, signal });
  if (!response.ok || !response.body) throw await errorFrom(response);
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
      if (name && data) onEvent(name, JSON.parse(data));
    }
  }
}
