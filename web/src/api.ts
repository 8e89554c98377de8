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

/** The model that pages look at and ask; empty for the one that is served first. */
export const chosenModel = signal("");

export function withModel(path: string): string {
  return chosenModel.value ? `${path}?model=${encodeURIComponent(chosenModel.value)}` : path;
}

/** A body that names the chosen model, unless it names one itself. */
export function naming(body: Record<string, unknown>): Record<string, unknown> {
  return chosenModel.value ? { model: chosenModel.value, ...body } : body;
}

/** Who answers: an engine's own server, or a router, which has no engine to look into. */
export const isRouter = signal(false);

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

/** Server-sent events of a request, as they come; `onHead` is given the answer's headers. */
export async function* events(path: string, body?: unknown, signal?: AbortSignal, onHead?: (headers: Headers) => void): AsyncGenerator<StreamEvent> {
  const response = await checked(
    await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: headers(),
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    }),
  );
  onHead?.(response.headers);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const searched = Math.max(rest.length - 1, 0);
      rest += value;
      let end = rest.indexOf("\n\n", searched);
      while (end >= 0) {
        const parsed = parseFrame(rest.slice(0, end));
        rest = rest.slice(end + 2);
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
  /** What the answer's head says of its way. */
  timing?: Record<string, number>;
  event?: StreamEvent;
  /** It is over. */
  end?: { message: string; code: string | null } | "done";
}

/** Several chats at once over one connection: a browser opens six to a host, and sends the rest one after another.
 *
 * A router has no such route: before one, each is asked by itself. */
export async function* chats(bodies: Record<string, unknown>[], signal?: AbortSignal): AsyncGenerator<StreamNews> {
  const asked = bodies.map(naming);
  yield* isRouter.value ? apart(asked, signal) : together(asked, signal);
}

async function* together(bodies: unknown[], signal?: AbortSignal): AsyncGenerator<StreamNews> {
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

async function* apart(bodies: Record<string, unknown>[], signal?: AbortSignal): AsyncGenerator<StreamNews> {
  const queue: StreamNews[] = [];
  let open = bodies.length;
  let wake = (): void => undefined;
  const tell = (news: StreamNews) => {
    queue.push(news);
    wake();
  };
  const one = async (index: number) => {
    try {
      const body = { ...bodies[index], stream: true };
      const heads = (headers: Headers) => tell({ index, id: headers.get("x-request-id") ?? "", timing: timingOf(headers) });
      for await (const event of events("/v1/chat/completions", body, signal, heads)) tell({ index, event });
      tell({ index, end: "done" });
    } catch (fault) {
      tell({ index, end: { message: told(fault), code: fault instanceof ApiFault ? fault.code : null } });
    }
    open -= 1;
    wake();
  };
  bodies.forEach((_, index) => void one(index));
  while (open > 0 || queue.length) {
    while (queue.length) yield queue.shift()!;
    if (open > 0) await new Promise<void>((done) => (wake = done));
    signal?.throwIfAborted();
  }
}

/** The parts of an answer's Server-Timing, in milliseconds. */
export function timingOf(headers: Headers): Record<string, number> {
  const found: Record<string, number> = {};
  for (const [, name, value] of (headers.get("server-timing") ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g)) found[name!] = Number(value);
  return found;
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
