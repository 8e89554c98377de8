/** What is served, and by whom: asked once, and again while the model loads or the server is gone. */
import { signal } from "@preact/signals";
import { ApiFault, apiKey, get, isRouter, needsKey, withModel } from "./api";

/** Where one of several models stands. */
export interface Resident {
  name: string;
  state: string;
  reason: string;
  phase: string;
  /** How long it has been loading, and how long it took the last time. */
  loading_s: number | null;
  load_s: number | null;
  num_bytes: number;
  is_measured: boolean;
  is_pinned: boolean;
  num_uses: number;
  num_waiting: number;
  expires_s: number | null;
}
export interface About {
  version: string;
  state: "ready" | "loading" | "draining" | "unavailable";
  model: string;
  device: string;
  max_context: number;
  num_blocks: number;
  block_size: number;
  max_sequences: number;
  max_batch_tokens: number;
  can_generate: boolean;
  memory: [string, number][];
  num_active_parameters: number;
  bench_targets: string[];
  served: string[];
  /** Where the server keeps several models and loads them when they are asked for. */
  residents?: Resident[];
  models: string[];
  devices: string[];
  policies: string[];
  is_admin: boolean;
  has_keys: boolean;
}

export const about = signal<About | null>(null);
export const reach = signal<"asking" | "ok" | "gone">("asking");

export interface ListedModel {
  id: string;
  capabilities?: string[];
  /** Where one of several stands: loaded, unloaded, loading, unloading, failed. */
  status?: { value: string; reason?: string };
}
/** What /v1/models lists. */
export const listed = signal<ListedModel[]>([]);

export async function list(): Promise<void> {
  try {
    listed.value = (await get<{ data: ListedModel[] }>("/v1/models")).data;
  } catch {
    listed.value = [];
  }
}

export interface ReplicaRow {
  name: string;
  state: string;
  /** An outside API that the gateway may fall back to: no replica. */
  is_outside?: boolean;
  is_draining?: boolean;
  is_breaker_closed?: boolean;
  models?: string[];
  num_pending?: number;
  num_waiting?: number;
  num_served?: number;
  num_failed?: number;
  first_byte_s?: number | null;
  kv_usage_fraction?: number;
  /** What the router uses it for, where its blocks are open to others. */
  role?: string | null;
  /** It gets another role once what it is doing has ended. */
  is_turning?: boolean;
  /** Prompts it computed for other replicas. */
  num_prefilled?: number;
}
export interface FleetView {
  is_router: boolean;
  policy?: string;
  replicas: ReplicaRow[];
  /** why, how often */
  choices?: [string, number][];
  /** where prompts were computed and why, how often */
  handovers?: [{ choice: string; why: string }, number][];
}
/** Who serves: a router's replicas, or this server's models. */
export const fleet = signal<FleetView | null>(null);

export async function lookAtFleet(): Promise<void> {
  try {
    fleet.value = await get<FleetView>("/app/v1/fleet");
    isRouter.value = fleet.value.is_router;
  } catch {
    fleet.value = null;
  }
}

/** Asked once more, now. */
export async function refresh(): Promise<void> {
  try {
    about.value = await get<About>(withModel("/app/v1/about"));
    reach.value = "ok";
  } catch (fault) {
    reach.value = fault instanceof ApiFault ? "ok" : "gone";
  }
}

export async function ask(): Promise<void> {
  await refresh();
  if (fleet.peek() === null) void lookAtFleet();
  const wait = about.value?.state === "ready" && reach.value === "ok" ? 10_000 : 1500;
  setTimeout(() => void ask(), needsKey.value ? 5000 : wait);
}

apiKey.subscribe(() => {
  if (reach.peek() !== "asking") void refresh();
});
