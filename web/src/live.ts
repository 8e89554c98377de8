/** The server's event stream: opened while a page needs it, opened again when it breaks. */
import { signal } from "@preact/signals";
import { useContext, useEffect, useState } from "preact/hooks";
import { fleet, lookAtFleet, refresh } from "./about";
import { chosenModel, events, withModel } from "./api";
import { SightContext } from "./ui/sight";

export interface RequestRow {
  request_id: number;
  call_id: string;
  tenant: string;
  num_prompt: number;
  num_cached: number;
  num_tokens: number;
  num_choices: number;
  ttft_s: number | null;
  tpot_s: number | null;
  outcome: string;
  miss: string;
  differs: [number, number, number] | null;
}
export interface OpenRow extends RequestRow {
  phase: "queued" | "prefill" | "decode";
  place: number;
  eta_s: number | null;
  age_s: number;
  prefill_fraction: number;
  /** Null while the engine has told nothing of it. */
  num_blocks: number | null;
}
export interface Spread {
  p50: number | null;
  p90: number | null;
  p99: number | null;
}
/** end_s, duration_s, prompt tokens, decoding sequences, drafts, accepted, KV positions read */
export type StepRow = [number, number, number, number, number, number, number];
export interface Finding {
  id: string;
  layer: string;
  layer_name: string;
  verdict: string;
  symptom: string;
  evidence: string;
  remedy: string;
}
export interface Pool {
  num_blocks: number;
  states: string;
  num_evictions: number;
  /** Of the first of those that run: request, its block table. */
  holders: [number, number[]][];
  prefixes: { num_blocks: number; num_references: number; first_tokens: number[]; first_block: number; text?: string }[];
  view_s: number;
}
export interface RefusalRow {
  number: number;
  time_s: number;
  status: number;
  code: string;
  message: string;
  path: string;
  tenant: string;
  call_id: string;
}
export interface Adapters {
  num_known: number;
  max_resident: number;
  /** Requests that wait for their adapter. */
  waiting: number;
  read: number;
  placed: number;
  evicted: number;
  /** Those in use first, then those on the device. */
  rows: { name: string; is_resident: boolean; num_open: number }[];
}
export interface Tiers {
  stored_blocks: number;
  loaded_blocks: number;
  declined_blocks: number;
  swapped_blocks: number;
  faults: number;
  host_bytes: number;
  disk_bytes: number;
}
export interface Live {
  time_s: number;
  is_ready: boolean;
  num_restarts: number;
  load: { num_running: number; num_waiting: number; num_waiting_tokens: number; kv_usage_fraction: number; num_preemptions: number };
  num_open: number;
  num_refused: number;
  rates: { prompt_per_s: number; cached_per_s: number; output_per_s: number; window_s: number };
  latency: { window_s: number; num_requests: number; ttft: Spread; tpot: Spread; mean_queue_s: number | null; mean_e2e_s: number | null };
  queue: {
    /** Of all that follow. */
    window_s: number;
    arrivals_per_s: number;
    ended_per_s: number;
    mean_time_s: number | null;
    mean_inside: number;
    capacity_per_s: number | null;
    rho: number | null;
    /** Sequences at once, seconds a token, tokens a second in all. */
    frontier: [number, number, number][];
  };
  /** Null where power cannot be read, or no price was told. */
  power: { watts: number | null; dollars_per_hour: number | null };
  /** why, requests, prompt tokens computed */
  misses: [string, number, number][];
  refusals: RefusalRow[];
  steps: StepRow[];
  requests: OpenRow[];
  ended: RequestRow[];
  samples: [number, number, number][];
  findings: Finding[];
  kv: Pool | null;
  /** Blocks beyond the device, since the start; null where none are kept. */
  tiers: Tiers | null;
  /** Null where none are served over this model. */
  adapters: Adapters | null;
}

export const live = signal<Live | null>(null);
export const connection = signal<"idle" | "open" | "broken">("idle");
/** Recent steps, oldest first, and figures of the last minutes. */
export const steps = signal<StepRow[]>([]);
export interface Moment {
  time_s: number;
  running: number;
  waiting: number;
  kv: number;
  output: number;
  prompt: number;
}
export const history = signal<Moment[]>([]);
/** Those turned away lately, the latest first. */
export const refusals = signal<RefusalRow[]>([]);

const MAX_STEPS = 600;
const MAX_MOMENTS = 600;
const MAX_REFUSALS = 100;
let users = 0;
let abort: AbortController | null = null;

/** For a page's effect: reads while the page is there. */
export function useStream(): () => void {
  users += 1;
  if (users === 1) void read();
  return () => {
    users -= 1;
    if (users === 0) abort?.abort();
  };
}

async function read(): Promise<void> {
  if (fleet.peek() === null) await lookAtFleet();
  if (fleet.peek()?.is_router) return; // it has no engine to look into
  while (users > 0) {
    isOther = false;
    abort = new AbortController();
    try {
      refusals.value = []; // a stream begins with all that are kept
      for await (const { data } of events(withModel("/app/v1/events"), undefined, abort.signal)) take(JSON.parse(data) as Live);
    } catch {
      // The reason does not matter: it is tried again.
    }
    if (users === 0) break;
    if (isOther) continue;
    connection.value = "broken";
    void refresh();
    await new Promise((done) => setTimeout(done, 1000));
  }
  connection.value = "idle";
}

/** Another model is looked at: what was seen of the one before is not its. */
let isOther = false;
let model = chosenModel.peek();
chosenModel.subscribe((next) => {
  if (next === model) return;
  model = next;
  [live.value, steps.value, history.value] = [null, [], []];
  isOther = true;
  abort?.abort();
});

function take(next: Live): void {
  connection.value = "open";
  if (next.refusals.length) refusals.value = [...next.refusals.reverse(), ...refusals.peek()].slice(0, MAX_REFUSALS);
  live.value = next;
  if (next.steps.length) steps.value = [...steps.peek(), ...next.steps].slice(-MAX_STEPS);
  const { load, rates } = next;
  const moment = {
    time_s: next.time_s,
    running: load.num_running,
    waiting: load.num_waiting,
    kv: load.kv_usage_fraction,
    output: rates.output_per_s,
    prompt: rates.prompt_per_s,
  };
  history.value = [...history.peek(), moment].slice(-MAX_MOMENTS);
}

const OUT_OF_SIGHT = 5;

/** The latest view, so many frames after it came: parts of a page draw one after the other, and no frame draws all of them.
 *
 * A part that nobody sees follows every fifth view only, and catches up when it comes into sight. */
export function useLive(frames: number): Live | null {
  const [value, setValue] = useState(live.peek());
  const sight = useContext(SightContext);
  useEffect(() => {
    let [frame, missed] = [0, 0];
    const later = (left: number) => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => (left > 0 ? later(left - 1) : setValue(live.peek())));
    };
    const stop = live.subscribe((next) => {
      if (next === null) return;
      missed += 1;
      if (!sight.isSeen && missed < OUT_OF_SIGHT) return;
      missed = 0;
      later(frames);
    });
    const catchUp = () => later(0);
    sight.listeners.add(catchUp);
    return () => {
      stop();
      sight.listeners.delete(catchUp);
      cancelAnimationFrame(frame);
    };
  }, [frames, sight]);
  return value;
}

export function bytesOf(text: string): Uint8Array {
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) found[place] = letters.charCodeAt(place);
  return found;
}
