/** The seven guided experiments: what is run, what to look for, and what must hold. */
import type { Flags, Simulated } from "../tools";
import { only } from "../tools";

export const BASE: Flags = {
  model: "llama-3.1-8b",
  hardware: "h100",
  rate: 10,
  "num-requests": 600,
  "shared-prefix": 2000,
  prompts: "80",
  "max-context": 8192,
  "ttft-s": 0.5,
  "tpot-s": 0.05,
};
const WAIT: Flags = { "max-waiting": 100_000, "max-waiting-tokens": 1_000_000_000 };
const ceil = (copies: number, more: Flags): Flags => ({ ...BASE, ...WAIT, rate: 0, policy: "round-robin", "num-requests": 1000 * copies, ...more });

export interface Run {
  label: string;
  flags: Flags;
}
export interface Experiment {
  number: number;
  name: string;
  question: string;
  look: string;
  runs: Run[];
  /** The run whose figures are the yardstick, of the experiment before. */
  against?: Flags;
  holds: string;
  check: (runs: Simulated[]) => boolean;
}

const tokens = (run: Simulated) => only(run).summary.output_tokens_per_s;
const tpot = (run: Simulated) => only(run).summary.tpot.p50;
const ttft = (run: Simulated) => only(run).summary.ttft.p50;
const good = (run: Simulated) => only(run).summary.good_fraction;

export const EXPERIMENTS: readonly Experiment[] = [
  {
    number: 1,
    name: "Baseline",
    question: "What does a batch that waits for its slowest member do to a queue?",
    look: "The queue on the left grows from the first second to the last. The latencies shown only tell how long the run was.",
    runs: [{ label: "static, no prefix cache", flags: { ...BASE, batching: "static", "prefix-caching": false } }],
    holds: "the queue grows, goodput below 5 %",
    check: ([run]) => good(run!) < 0.05,
  },
  {
    number: 2,
    name: "Continuous batching",
    question: "What changes if a freed slot is filled at the next step?",
    look: "Same arrivals, same machine. Nobody waits any more: requests join and leave by the step.",
    runs: [{ label: "continuous", flags: { ...BASE, "prefix-caching": false } }],
    against: { ...BASE, batching: "static", "prefix-caching": false },
    holds: "mean queue below 1, goodput above 95 %",
    check: ([run]) => good(run!) > 0.95 && only(run!).replicas.every((one) => one.mean_waiting < 1),
  },
  {
    number: 3,
    name: "Prefix cache",
    question: "2,000 of every prompt's 2,080 tokens are the same. Who computes them?",
    look: "96 % of prompt tokens turn blue: cached. TTFT falls several times over, and decoding has the machine to itself.",
    runs: [{ label: "with the prefix cache", flags: BASE }],
    against: { ...BASE, "prefix-caching": false },
    holds: "TTFT falls more than 5 times",
    check: ([run, before]) => !before || ttft(before) > 5 * ttft(run!),
  },
  {
    number: 4,
    name: "Speculation",
    question: "Do cheap guesses make a memory-bound step worth more tokens?",
    look: "TPOT falls by more than half; TTFT does not move: drafts speed up writing, never reading.",
    runs: [{ label: "4 drafts, 70 % accepted", flags: { ...BASE, speculate: 4, acceptance: 0.7 } }],
    against: BASE,
    holds: "TPOT falls more than 2 times, TTFT stays",
    check: ([run, before]) => !before || (tpot(before) > 2 * tpot(run!) && ttft(run!) < 1.2 * ttft(before)),
  },
  {
    number: 5,
    name: "More GPUs",
    question: "Eight devices: one fast copy, or eight copies?",
    look: "Tensor parallelism shortens every token and pays for talking; replicas give nearly all of their tokens and no speed.",
    runs: [
      { label: "1 device", flags: ceil(1, {}) },
      { label: "tensor 4", flags: ceil(1, { tensor: 4 }) },
      { label: "tensor 8", flags: ceil(1, { tensor: 8 }) },
      { label: "4 replicas", flags: ceil(4, { replicas: 4 }) },
      { label: "8 replicas", flags: ceil(8, { replicas: 8 }) },
    ],
    holds: "tensor: below linear, TPOT falls; replicas: near linear, TPOT stays",
    check: ([one, tp4, tp8, dp4, dp8]) =>
      tokens(tp8!) < 6 * tokens(one!) && tpot(tp8!) < tpot(tp4!) && tpot(tp4!) < tpot(one!) && tokens(dp8!) > 6.5 * tokens(one!) && Math.abs(tpot(dp4!) / tpot(one!) - 1) < 0.1,
  },
  {
    number: 6,
    name: "Breaking point",
    question: "How far is fine from broken?",
    look: "Between 20 and 22 requests a second TTFT p99 grows two hundred times. Below the knee nothing warns of it.",
    runs: [15, 18, 20, 22, 25].map((rate) => ({ label: `${rate} requests/s`, flags: { ...BASE, ...WAIT, rate, "num-requests": 300 * rate } })),
    holds: "the knee lies between 20 and 22",
    check: (runs) => good(runs[2]!) > 0.95 && good(runs[3]!) < 0.5,
  },
  {
    number: 7,
    name: "Size wall",
    question: "A 70B model on eight H100s: which precision, which layout?",
    look: "Fewer bits leave room for more copies and a larger batch: most tokens with int4, and yet no request within the SLO.",
    runs: [
      { label: "bf16, tensor 8", flags: ceil(1, { model: "llama-3.1-70b", tensor: 8 }) },
      { label: "int8, tensor 4 x 2", flags: ceil(2, { model: "llama-3.1-70b", weights: "int8", tensor: 4, replicas: 2 }) },
      { label: "int4, 8 replicas", flags: ceil(8, { model: "llama-3.1-70b", weights: "int4", replicas: 8 }) },
    ],
    holds: "int8 above 1.3 times bf16; int4 has most tokens and no goodput",
    check: ([bf16, int8, int4]) => tokens(int8!) > 1.3 * tokens(bf16!) && tokens(int4!) > tokens(int8!) && good(int4!) < 0.01,
  },
];
