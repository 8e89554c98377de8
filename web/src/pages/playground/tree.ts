/** A conversation as a tree: every edit or regenerated answer is a branch, and one path through it is shown. */
import { signal } from "@preact/signals";

import type { Message } from "./settings";

export interface Rival {
  token: string;
  logprob: number;
  id: number;
}
export interface Token extends Rival {
  top: Rival[];
  draft?: boolean;
}
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  completion_tokens_details?: { accepted_prediction_tokens?: number; rejected_prediction_tokens?: number; reasoning_tokens?: number };
  timings?: Record<string, number>;
}
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}
export interface Turn {
  id: number;
  role: "user" | "assistant" | "tool";
  text: string;
  reasoning: string;
  parent: number;
  children: number[];
  chosen: number;
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  note: string;
  /** Of one that waits: how much of what it waits for is done. */
  share: number;
  /** What the answer's head said of its way: milliseconds in a router, between it and the replica. */
  way: Record<string, number>;
  tokens: Token[];
  tools: ToolCall[];
  usage: Usage | null;
  finish: string;
  ttft_ms: number;
  total_ms: number;
  ticks: number[];
  /** Characters that were given to the model rather than made by it: an alternative that was forced. */
  given: number;
  /** The tokens that those characters are. */
  begun: number[];
  /** What the model was asked for this answer. */
  asked: Message[];
  /** Of a tool turn: what each call gave, by the call's id. */
  results: [string, string][];
}

/** The turns as a client sends them. */
export function messages(turns: Turn[]): Message[] {
  return turns.flatMap((turn): Message[] => {
    if (turn.role === "tool") return turn.results.map(([id, content]) => ({ role: "tool", content, tool_call_id: id }));
    if (turn.tools.length) {
      const calls = turn.tools.map((call) => ({ id: call.id, type: "function" as const, function: { name: call.name, arguments: call.arguments } }));
      return [{ role: turn.role, content: turn.text, tool_calls: calls }];
    }
    return turn.text ? [{ role: turn.role, content: turn.text }] : [];
  });
}

export class Tree {
  readonly changed = signal(0);
  private turns = new Map<number, Turn>();
  private next = 1;
  private root: Pick<Turn, "children" | "chosen"> = { children: [], chosen: 0 };

  get(id: number): Turn {
    return this.turns.get(id)!;
  }

  add(role: Turn["role"], text: string, parent: number): Turn {
    const turn: Turn = {
      id: this.next++,
      role,
      text,
      reasoning: "",
      parent,
      children: [],
      chosen: 0,
      state: role === "assistant" ? "waiting" : "done",
      note: "",
      share: 0,
      way: {},
      tokens: [],
      tools: [],
      usage: null,
      finish: "",
      ttft_ms: 0,
      total_ms: 0,
      ticks: [],
      given: 0,
      begun: [],
      asked: [],
      results: [],
    };
    this.turns.set(turn.id, turn);
    const above = parent ? this.get(parent) : this.root;
    above.children.push(turn.id);
    above.chosen = above.children.length - 1;
    this.touch();
    return turn;
  }

  path(): Turn[] {
    const found: Turn[] = [];
    let at: Pick<Turn, "children" | "chosen"> = this.root;
    while (at.children.length) {
      const turn = this.get(at.children[at.chosen]!);
      found.push(turn);
      at = turn;
    }
    return found;
  }

  /** The turns up to one, itself left out. */
  before(id: number): Turn[] {
    const found: Turn[] = [];
    let at = this.get(id).parent;
    while (at) {
      found.unshift(this.get(at));
      at = this.get(at).parent;
    }
    return found;
  }

  siblings(turn: Turn): { place: number; of: number } {
    const above = turn.parent ? this.get(turn.parent) : this.root;
    return { place: above.children.indexOf(turn.id), of: above.children.length };
  }

  choose(turn: Turn, place: number): void {
    const above = turn.parent ? this.get(turn.parent) : this.root;
    above.chosen = Math.min(Math.max(place, 0), above.children.length - 1);
    this.touch();
  }

  clear(): void {
    this.turns.clear();
    this.root = { children: [], chosen: 0 };
    this.touch();
  }

  touch(): void {
    this.changed.value += 1;
  }
}
