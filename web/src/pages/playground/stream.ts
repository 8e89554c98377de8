/** One answer from the server, written into a turn as it comes. */
import { ApiFault, chats, events, timingOf, told } from "../../api";
import type { Token, Turn, Usage } from "./tree";

interface Entry {
  token: string;
  token_id: number;
  logprob: number;
  top_logprobs: { token: string; token_id: number; logprob: number }[];
}
interface Chunk {
  error?: { message: string };
  choices?: {
    delta: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    logprobs?: { content: Entry[] } | null;
    finish_reason: string | null;
    accepted_drafts?: boolean[];
  }[];
  usage?: Usage | null;
}

const MAX_TOKENS_KEPT = 4000;

export async function answer(turn: Turn, body: Record<string, unknown>, signal: AbortSignal, changed: () => void): Promise<void> {
  const start = performance.now();
  try {
    for await (const { event, data } of events("/v1/chat/completions", body, signal, (headers) => (turn.way = timingOf(headers)))) {
      if (data === "[DONE]") break;
      const now = performance.now() - start;
      if (event === "progress") {
        const news = JSON.parse(data) as Progress;
        [turn.note, turn.share] = [progress(news), (news.percent ?? 0) / 100];
      } else {
        take(turn, JSON.parse(data) as Chunk, now);
      }
      turn.total_ms = now;
      changed();
    }
    if (turn.state !== "failed") turn.state = "done";
  } catch (fault) {
    turn.state = signal.aborted ? "stopped" : "failed";
    turn.note = signal.aborted ? "stopped" : told(fault);
    if (fault instanceof ApiFault && fault.code) turn.note += ` (${fault.code})`;
  }
  turn.total_ms = performance.now() - start;
  changed();
}

/** Several answers that begin in the same moment, each written into its turn. */
export async function answers(turns: Turn[], bodies: Record<string, unknown>[], signal: AbortSignal, changed: () => void): Promise<string[]> {
  const start = performance.now();
  const ids = turns.map(() => "");
  try {
    for await (const news of chats(bodies, signal)) {
      const turn = turns[news.index]!;
      turn.total_ms = performance.now() - start;
      if (news.id) ids[news.index] = news.id;
      if (news.timing) turn.way = news.timing;
      if (news.event && news.event.data !== "[DONE]") take(turn, JSON.parse(news.event.data) as Chunk, turn.total_ms);
      if (news.end && news.end !== "done") {
        turn.state = "failed";
        turn.note = news.end.message;
      } else if (news.end && turn.state !== "failed") turn.state = "done";
      changed();
    }
  } catch (fault) {
    for (const turn of turns.filter((one) => one.state === "waiting" || one.state === "streaming")) {
      turn.state = signal.aborted ? "stopped" : "failed";
      turn.note = signal.aborted ? "stopped" : told(fault);
      turn.total_ms = performance.now() - start;
    }
  }
  changed();
  return ids;
}

interface Progress {
  stage: string;
  percent?: number | null;
  /** Of a model that is being loaded: what its engine does. */
  phase?: string;
  /** In the queue, from 1. */
  position?: number;
  eta_s?: number | null;
}

function progress(news: Progress): string {
  const eta = news.eta_s ? `, about ${Math.ceil(news.eta_s)} s` : "";
  const share = news.percent ? `, ${news.percent} %` : "";
  if (news.stage === "prefill") return `reading the prompt, ${news.percent ?? 0} %`;
  if (news.stage === "load") return `the model is being loaded: ${news.phase || "begun"}${share}${eta}`;
  if (news.stage === "room") return news.phase ?? "waiting for memory";
  return `waiting, place ${news.position ?? 1} in the queue${eta}`;
}

function take(turn: Turn, chunk: Chunk, now: number): void {
  if (chunk.error) {
    turn.state = "failed";
    turn.note = chunk.error.message;
    return;
  }
  if (chunk.usage) turn.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: tools } = choice.delta;
  if (content || reasoning || tools?.length) {
    if (!turn.ticks.length) {
      turn.ttft_ms = now;
      turn.state = "streaming";
      turn.note = "";
    }
    if (turn.ticks.length < MAX_TOKENS_KEPT) turn.ticks.push(now);
  }
  if (content) turn.text += content;
  if (reasoning) turn.reasoning += reasoning;
  for (const call of tools ?? []) {
    const found = (turn.tools[call.index] ??= { id: "", name: "", arguments: "" });
    if (call.id) found.id = call.id;
    if (call.function?.name) found.name = call.function.name;
    found.arguments += call.function?.arguments ?? "";
  }
  const drafts = choice.accepted_drafts ?? [];
  (choice.logprobs?.content ?? []).forEach((entry, index) => {
    if (turn.tokens.length < MAX_TOKENS_KEPT) turn.tokens.push(token(entry, drafts[index] ?? false));
  });
  if (choice.finish_reason) turn.finish = choice.finish_reason;
}

function token(entry: Entry, draft: boolean): Token {
  const top = entry.top_logprobs.map((one) => ({ token: one.token, logprob: one.logprob, id: one.token_id }));
  return { token: entry.token, logprob: entry.logprob, id: entry.token_id, top, ...(draft ? { draft } : {}) };
}
