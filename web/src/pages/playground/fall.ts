/** Where the time of one answer went, from what its page saw and what came with it; it needs no look into an engine. */
import type { Fall } from "../dashboard/waterfall";
import type { Turn } from "./tree";

const PARTS = ["load", "queue", "prefill", "decode", "flush"] as const;

/** Names and milliseconds, in the order things happen.
 *
 * `router` and `network` are what a router says of its own time and of the way between it and the replica; `client` is what
 * nobody on the other side counted: the way to the server, and the browser. */
export function partsOf(turn: Turn): [string, number][] {
  const timings = turn.usage?.timings;
  if (!timings) return [];
  const way = (["router", "network"] as const).filter((name) => name in turn.way).map((name): [string, number] => [name, turn.way[name]!]);
  const inside = PARTS.filter((name) => `${name}_ms` in timings).map((name): [string, number] => [name, Math.max(timings[`${name}_ms`]!, 0)]);
  const counted = [...way, ...inside].reduce((sum, [, value]) => sum + value, 0);
  return [["client", Math.max(turn.total_ms - counted, 0)], ...way, ...inside];
}

export function fallOf(turn: Turn): Fall {
  let at = 0;
  const spans = partsOf(turn).map(([name, value]) => ({ name, start_ms: at, end_ms: (at += value) }));
  return {
    request_id: 0,
    call_id: "",
    num_prompt: turn.usage?.prompt_tokens ?? 0,
    num_cached: turn.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    num_tokens: turn.usage?.completion_tokens ?? 0,
    miss: "",
    differs: null,
    outcome: turn.finish,
    is_over: true,
    total_ms: Math.max(at, turn.total_ms),
    spans,
    chunks: [],
    tokens_ms: turn.ticks,
    stalls: [],
  };
}
