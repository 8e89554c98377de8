/** What is served, and by whom: asked once, and again while the model loads or the server is gone. */
import { signal } from "@preact/signals";
import { ApiFault, apiKey, get, needsKey } from "./api";

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
  models: string[];
  devices: string[];
  policies: string[];
  is_admin: boolean;
  has_keys: boolean;
}

export const about = signal<About | null>(null);
export const reach = signal<"asking" | "ok" | "gone">("asking");

export async function ask(): Promise<void> {
  try {
    about.value = await get<About>("/app/v1/about");
    reach.value = "ok";
  } catch (fault) {
    reach.value = fault instanceof ApiFault ? "ok" : "gone";
  }
  const wait = about.value?.state === "ready" && reach.value === "ok" ? 10_000 : 1500;
  setTimeout(() => void ask(), needsKey.value ? 5000 : wait);
}

apiKey.subscribe(() => {
  if (reach.peek() !== "asking") void get<About>("/app/v1/about").then((found) => (about.value = found), () => undefined);
});
