/** The server as the page sees it. Everything goes to the origin we came from; a key, if one is needed, is kept for this tab only. */
import { signal } from "@preact/signals";

const KEY = "penstock.key";
export const apiKey = signal(sessionStorage.getItem(KEY) ?? "");
export const needsKey = signal(false);

export function setKey(key: string): void {
  apiKey.value = key;
  sessionStorage.setItem(KEY, key);
  needsKey.value = false;
}

export class ApiFault extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

export function headers(): Record<string, string> {
  const found: Record<string, string> = { "content-type": "application/json", "x-penstock-app": "1" };
  if (apiKey.value) found["authorization"] = `Bearer ${apiKey.value}`;
  return found;
}

async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  if (response.status === 401) needsKey.value = true;
  let message = `the server answered ${response.status}`;
  let code: string | null = null;
  try {
    const body = (await response.json()) as { error?: { message?: string; code?: string | null } };
    message = body.error?.message ?? message;
    code = body.error?.code ?? null;
  } catch {
    // Not JSON: the status says it.
  }
  throw new ApiFault(response.status, message, code);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await checked(await fetch(path, { headers: headers(), signal: signal ?? null }));
  return (await response.json()) as T;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const response = await checked(
    await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal: signal ?? null }),
  );
  return (await response.json()) as T;
}

export interface StreamEvent {
  event: string;
  data: string;
}

/** Server-sent events of a request, as they come. */
export async function* events(path: string, body?: unknown, signal?: AbortSignal): AsyncGenerator<StreamEvent> {
  const response = await checked(
    await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: headers(),
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    }),
  );
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      let end = rest.indexOf("\n\n");
      while (end >= 0) {
        const frame = rest.slice(0, end);
        rest = rest.slice(end + 2);
        const parsed = parseFrame(frame);
        if (parsed) yield parsed;
        end = rest.indexOf("\n\n");
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

export interface StreamNews {
  index: number;
  /** Which request it is, by its x-request-id. */
  id?: string;
  event?: StreamEvent;
  /** It is over. */
  end?: { message: string; code: string | null } | "done";
}

/** Several chats at once over one connection: a browser opens six to a host, and sends the rest one after another. */
export async function* chats(bodies: unknown[], signal?: AbortSignal): AsyncGenerator<StreamNews> {
  const rests = bodies.map(() => "");
  for await (const { event, data } of events("/app/v1/streams", { bodies }, signal)) {
    const news = JSON.parse(data) as { index: number; request_id?: string; data?: string; error?: { message: string; code: string | null } };
    const { index } = news;
    if (event === "begin") yield { index, id: news.request_id ?? "" };
    else if (event === "end") yield { index, end: news.error ?? "done" };
    else {
      const frames = (rests[index]! + (news.data ?? "")).split("\n\n");
      rests[index] = frames.pop() ?? "";
      for (const frame of frames) {
        const parsed = parseFrame(frame);
        if (parsed) yield { index, event: parsed };
      }
    }
  }
}

function parseFrame(frame: string): StreamEvent | null {
  let event = "message";
  const data: string[] = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event, data: data.join("\n") } : null;
}

/** A message for people, whatever went wrong. */
export function told(fault: unknown): string {
  if (fault instanceof ApiFault) return fault.message;
  if (fault instanceof DOMException && fault.name === "AbortError") return "stopped";
  if (fault instanceof TypeError) return "the server cannot be reached; is it still running?";
  return fault instanceof Error ? fault.message : String(fault);
}
