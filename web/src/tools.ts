/** The tools on the server: what they are asked, and what they answer. */
import { ApiFault, events, post } from "./api";

export type Flags = Record<string, string | number | boolean>;

export interface Percentiles {
  count: number;
  mean: number;
  p50: number;
  p90: number;
  p95: number;
  p99: number;
  max: number;
}
export interface Summary {
  duration_s: number;
  outcomes: Record<string, number>;
  ttft: Percentiles;
  tpot: Percentiles;
  itl: Percentiles;
  e2e: Percentiles;
  num_prompt_tokens: number;
  num_cached_tokens: number;
  num_output_tokens: number;
  requests_per_s: number;
  output_tokens_per_s: number;
  good_requests_per_s: number;
  good_tokens_per_s: number;
  good_fraction: number;
}
export interface ReplicaReport {
  name: string;
  num_requests: number;
  num_steps: number;
  busy_fraction: number;
  mean_running: number;
  mean_waiting: number;
  max_waiting: number;
  mean_kv_usage_fraction: number;
  max_kv_usage_fraction: number;
  num_preemptions: number;
  num_drafted: number;
  num_accepted: number;
}
export interface Outcome {
  summary: Summary;
  bound: string;
  num_turned_away: number;
  num_starts: number;
  num_stops: number;
  num_transfers: number;
  mean_transfer_s: number;
  replica_seconds: number;
  queue: { offered_per_s: number | null; capacity_per_s: number | null; rho: number | null; inside: number; time_s: number; stability: { is_stable: boolean } };
  replicas: ReplicaReport[];
}
export interface Report {
  sizing: { num_blocks: number; block_size: number; weight_bytes: number; block_bytes: number; max_batch_tokens: number };
  step_times: { hardware: { name: string; price_per_hour: number | null; memory_bytes: number } };
  workload: { num_requests: number; num_prompt_tokens: number; num_output_tokens: number; span_s: number };
  results: Record<string, Outcome>;
}
/** start_s, end_s, steps, sequences, prompt tokens */
export type SimStep = [number, number, number, number, number];
/** time_s, running, waiting, KV share */
export type SimLoad = [number, number, number, number];
/** arrival, first token (-1), last token (-1), end, prompt, cached, tokens, succeeded */
export type SimRequest = [number, number, number, number, number, number, number, number];
export interface Frames {
  replicas: { name: string; steps: SimStep[]; loads: SimLoad[] }[];
  requests: SimRequest[];
}
export interface Simulated {
  report: Report;
  frames?: Record<string, Frames>;
}

export const LANE = Math.random().toString(36).slice(2, 10);

export async function simulate(flags: Flags, options: { lane: string; frames?: boolean; signal?: AbortSignal; onProgress?: (virtual_s: number) => void }): Promise<Simulated> {
  const body = { flags, frames: options.frames ?? false, lane: `${LANE} ${options.lane}` };
  return await lastOf<Simulated>("/app/v1/simulate", body, options.signal, (data) => options.onProgress?.(JSON.parse(data) as number));
}

export interface BenchProgress {
  stage: string;
  elapsed_s?: number;
  num_total?: number;
  num_sent?: number;
  num_ended?: number;
  num_failed?: number;
  num_open?: number;
  num_pieces?: number;
  ttft_s?: number | null;
}

/** A benchmark of this server, or of one that the operator named. */
export async function benchmark<T>(flags: Flags, options: { target: string; key: string; signal: AbortSignal; onProgress: (news: BenchProgress) => void }): Promise<T> {
  const body = { flags, lane: LANE, target: options.target, key: options.key };
  return await lastOf<T>("/app/v1/bench", body, options.signal, (data) => options.onProgress(JSON.parse(data) as BenchProgress));
}

/** The result that a stream of events ends with. */
async function lastOf<T>(path: string, body: unknown, signal: AbortSignal | undefined, onProgress: (data: string) => void): Promise<T> {
  for await (const { event, data } of events(path, body, signal)) {
    if (signal?.aborted) break;
    if (event === "progress") onProgress(data);
    else if (event === "result") return JSON.parse(data) as T;
    else if (event === "fault") {
      const { error } = JSON.parse(data) as { error: { message: string; code: string | null } };
      throw new ApiFault(422, error.message, error.code);
    }
  }
  signal?.throwIfAborted();
  throw new ApiFault(500, "the run ended without a result; try again");
}

export const only = (found: Simulated): Outcome => Object.values(found.report.results)[0]!;
export const isUnstable = (found: Simulated): boolean => !only(found).queue.stability.is_stable;
export const film = (found: Simulated): Frames | undefined => Object.values(found.frames ?? {})[0];

/** What a command line calls NAME=VALUE, without dashes: the settings among what pages can set. */
const SETTINGS = new Set(
  (
    "overlap max-pending draft-cost speculate-up-to local-below scale-by scale-target cold-start-s down-delay-s ttft-s tpot-s " +
    "e2e-s batching gather-s max-waiting-tokens attainment duration-s trace-speed shared-fraction urgent-fraction sessions " +
    "acceptance transfer-gb-s deadline-s tenants api-in api-out workload max-devices"
  ).split(" "),
);

export function commandOf(name: string, flags: Flags, first = ""): string {
  const words = Object.entries(flags).map(([flag, value]) => {
    if (typeof value === "boolean" && !SETTINGS.has(flag)) return value ? `--${flag}` : `--no-${flag}`;
    return `${SETTINGS.has(flag) ? `${flag}=` : `--${flag} `}${/[^\w.,:-]/.test(String(value)) ? `"${value}"` : value}`;
  });
  return ["penstock", name, first, ...words].filter(Boolean).join(" ");
}

export interface Quantity {
  key: string;
  value: number | string | boolean | number[] | null;
  unit: string;
  origin: string;
  textbook: number | string | null;
}
export interface Figure {
  key: string;
  label: string;
  value: number | string | boolean | number[] | null;
  unit: string;
  formula: string;
  textbook: number | string | boolean | number[] | null;
}
export interface Sheet {
  calculator: string;
  question: string;
  inputs: Record<string, unknown>;
  quantities: Quantity[];
  figures: Figure[];
  values: Record<string, number>;
  textbook: Record<string, number>;
  notes: string[];
}

export const calculate = (name: string, inputs: Record<string, unknown>, signal?: AbortSignal): Promise<Sheet> =>
  post<Sheet>(`/app/v1/calculators/${name}`, { inputs }, signal);
