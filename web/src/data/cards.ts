/** The explorations: what each asks, and where its numbers come from. */
import type { Card_ } from "../pages/explore/frame";

export const CARDS: readonly Card_[] = [
  { number: 1, slug: "lifecycle", title: "Request lifecycle", question: "Where does the time of a request go?", sources: ["live"], area: "token cost", insight: "n tokens take n passes over all weights: a 70B model in 16 bits reads 28 TB for an answer of 200." },
  { number: 2, slug: "decode-loop", title: "Decode loop", question: "How is a token chosen?", sources: ["live"], area: "decode loop", insight: "Temperature reshapes the distribution, top-k cuts it by count, top-p by mass; then one number is drawn." },
  { number: 3, slug: "phases", title: "Prefill and decode", question: "Why is reading 500 tokens cheaper than writing ten?", sources: ["formula", "live"], area: "phases", insight: "Prefill is compute-bound and sets TTFT; decode is memory-bound and sets TPOT." },
  { number: 4, slug: "kv-growth", title: "KV growth", question: "When does the cache outgrow the weights?", sources: ["formula", "live"], area: "attention, paging", insight: "Weights are paid once, keys and values by every user and every token." },
  { number: 5, slug: "hierarchy", title: "Memory hierarchy", question: "Why does it matter where bytes lie?", sources: ["formula"], area: "hardware", insight: "Every level outward is 3 to 50 times slower: what is read every step must lie close." },
  { number: 6, slug: "latency", title: "Latency playground", question: "How do TTFT, ITL, TPOT and E2E feel under load?", sources: ["live"], area: "metrics", insight: "Below 15 tokens/s a reader notices, above 25 it feels instant; p99 above ten times p50 is a tail problem." },
  { number: 7, slug: "throughput", title: "Throughput and latency", question: "Which batch?", sources: ["formula", "simulated"], area: "batching", insight: "Most throughput is not most goodput: the best batch is the largest that still meets the SLO." },
  { number: 8, slug: "batching", title: "Batching timelines", question: "What does waiting for the slowest cost?", sources: ["simulated"], area: "batching", insight: "Schedule by the step, not by the request: a freed slot is filled at once." },
  { number: 9, slug: "attention", title: "Tiled attention", question: "How is exact attention done without the N × N matrix?", sources: ["formula"], area: "attention, paging", insight: "Same result, less traffic: a tile's maximum and sum are all that must be carried on." },
  { number: 10, slug: "blocks", title: "Block table", question: "Why pages?", sources: ["live", "simulated"], area: "attention, paging", insight: "Reserving wastes 60 to 80 %; paging wastes less than a block a sequence, and lets prefixes be shared." },
  { number: 11, slug: "speculation", title: "Speculation", question: "When does guessing pay?", sources: ["formula", "simulated", "live"], area: "speculation", insight: "Lossless: accept with min(1, p/q), else draw from the residual. It helps TPOT, never TTFT, and a full batch has no idle compute for it." },
  { number: 12, slug: "memory", title: "Memory calculator", question: "Does it fit?", sources: ["formula"], area: "quantization", insight: "What the weights leave is your batch." },
  { number: 13, slug: "parallelism", title: "Parallelism", question: "What is split, and who must talk?", sources: ["simulated", "formula"], area: "parallelism", insight: "Tensor parallel inside a node; stages or replicas across nodes." },
  { number: 14, slug: "prefix", title: "Prefix timeline", question: "What makes a hit?", sources: ["live"], area: "serving", insight: "Equal from the first token on: what is stable comes first, what varies last." },
  { number: 15, slug: "split", title: "Together or split", question: "Who stutters when a long prompt comes?", sources: ["simulated"], area: "serving", insight: "Splitting removes the spikes; chunking removes most of them for nothing." },
];
export const card = (slug: string): Card_ => CARDS.find((one) => one.slug === slug)!;
