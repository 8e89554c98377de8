/** 2: one token at a time from the real model; temperature, top-k and top-p re-applied exactly to its log probabilities. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { naming, post, told } from "../../api";
import { card } from "../../data/cards";
import { percent, significant } from "../../format";
import { useKept } from "../../ui/hooks";
import { Button, Card, Legend, Note, Slider, Stat, Stats, TextField } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { prompt: "The capital of France is", temperature: 1, top_k: 0, top_p: 1, seed: 7 };

interface Completion {
  choices: { logprobs: { top_token_ids: Record<string, number>[] } }[];
}
interface Rival {
  id: number;
  token: string;
  logprob: number;
}
export interface Shaped extends Rival {
  raw: number;
  share: number;
  kept: boolean;
}
interface Chip {
  id: number;
  token: string;
  share: number;
  forced: boolean;
  rivals: Rival[];
}

/** The model's distribution after temperature, then top-k, then top-p, as the engine's sampler cuts it. */
export function reshape(rivals: Rival[], temperature: number, topK: number, topP: number): Shaped[] {
  const rows = [...rivals].sort((a, b) => b.logprob - a.logprob);
  const raw = rows.map((one) => Math.exp(one.logprob));
  if (temperature === 0) return rows.map((one, index) => ({ ...one, raw: raw[index]!, share: index === 0 ? 1 : 0, kept: index === 0 }));
  const heated = rows.map((one) => Math.exp(one.logprob / temperature));
  // What lies beyond the listed rivals stays as one tail; heated it grows or shrinks like its mean member would.
  const tail = temperature === 1 ? Math.max(1 - raw.reduce((sum, one) => sum + one, 0), 0) : 0;
  const total = heated.reduce((sum, one) => sum + one, 0) + tail;
  const shares = heated.map((one) => one / total);
  let mass = 0;
  const kept = shares.map((share, index) => {
    const isKept = (topK === 0 || index < topK) && (index === 0 || mass < topP);
    mass += share;
    return isKept;
  });
  const left = shares.reduce((sum, share, index) => sum + (kept[index] ? share : 0), 0) + (topK === 0 && topP >= 1 ? tail / total : 0);
  return rows.map((one, index) => ({ ...one, raw: raw[index]!, share: kept[index] ? shares[index]! / left : 0, kept: kept[index]! }));
}

function drawn(shaped: Shaped[], seed: number, place: number): Shaped {
  let x = (seed * 2654435761 + place * 40503 + 1) >>> 0;
  for (let i = 0; i < 3; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    x >>>= 0;
  }
  let left = x / 2 ** 32;
  for (const one of shaped) {
    left -= one.share;
    if (left <= 0) return one;
  }
  return shaped[0]!;
}

export function DecodeLoop(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [chips, setChips] = useState<Chip[]>([]);
  const [rivals, setRivals] = useState<Rival[]>([]);
  const [branches, setBranches] = useState<string[]>([]);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [end, setEnd] = useState("");
  const spelled = useRef(new Map<number, string>());
  const spell = async (ids: number[]) => {
    const fresh = ids.filter((id) => !spelled.current.has(id));
    const texts = await Promise.all(fresh.map((id) => post<{ prompt: string }>("/detokenize", { tokens: [id], skip_special_tokens: false })));
    fresh.forEach((id, index) => spelled.current.set(id, texts[index]!.prompt));
  };
  /** The prompt is ids, the chosen tokens among them: text made into tokens again may become others. */
  const ask = async (ids: number[]): Promise<Rival[]> => {
    const found = await post<Completion>("/v1/completions", naming({ prompt: ids, max_tokens: 1, temperature: 0, logprobs: 20, return_token_ids: true }));
    const top = Object.entries(found.choices[0]!.logprobs.top_token_ids[0] ?? {}).map(([id, logprob]) => ({ id: Number(id), logprob }));
    await spell(top.map((one) => one.id));
    return top.map((one) => ({ ...one, token: spelled.current.get(one.id) ?? "" }));
  };
  const step = async (force?: number, times = 1) => {
    setBusy(true);
    setFault("");
    let [list, at] = [chips, rivals];
    try {
      const prompt = (await post<{ tokens: number[] }>("/tokenize", naming({ prompt: state.prompt }))).tokens;
      const now = (after: Chip[]) => [...prompt, ...after.map((chip) => chip.id)];
      for (let i = 0; i < times; i++) {
        if (!at.length) {
          at = await ask(now(list));
          setRivals(at);
          if (times === 1) break; // seen first, drawn next
        }
        const shaped = reshape(at, state.temperature, state.top_k, state.top_p);
        const chosen = force === undefined ? drawn(shaped, state.seed, list.length) : shaped.find((one) => one.id === force)!;
        if (/<\|.*\|>|^$/.test(chosen.token)) {
          setEnd("The model chose its end-of-text token: that is how it stops.");
          break;
        }
        if (force !== undefined) setBranches((before) => [...before, list.map((chip) => chip.token).join("") + " ⟶ " + chosen.token]);
        list = [...list, { id: chosen.id, token: chosen.token, share: chosen.share, forced: force !== undefined, rivals: at }];
        setChips(list);
        at = await ask(now(list));
        setRivals(at);
      }
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy(false);
  };
  const reset = () => {
    setChips([]);
    setRivals([]);
    setEnd("");
  };
  const shaped = reshape(rivals, state.temperature, state.top_k, state.top_p);
  const entropy = shaped.reduce((sum, one) => sum - (one.share > 0 ? one.share * Math.log2(one.share) : 0), 0);
  const listed = shaped.reduce((sum, one) => sum + one.raw, 0);
  return (
    <Frame
      card={card("decode-loop")}
      state={[chips.length, state.temperature, state.top_k, state.top_p]}
      controls={
        <>
          <TextField label="Prompt" value={state.prompt} rows={3} onChange={(prompt) => { set({ prompt }); reset(); }} />
          <Slider label="Temperature" value={state.temperature} min={0} max={2} step={0.05} onChange={(temperature) => set({ temperature })} />
          <Slider label="Top-k" value={state.top_k} min={0} max={100} hint="0 is off" onChange={(top_k) => set({ top_k })} />
          <Slider label="Top-p" value={state.top_p} min={0.05} max={1} step={0.05} onChange={(top_p) => set({ top_p })} />
          <Slider label="Seed" value={state.seed} min={0} max={100} onChange={(seed) => set({ seed })} />
          <div class="row">
            <Button kind="primary" disabled={busy || !!end} onClick={() => void step()}>
              {rivals.length ? "Draw a token" : "Ask the model"}
            </Button>
            <Button disabled={busy || !!end} onClick={() => void step(undefined, 10)}>
              Run 10
            </Button>
            <Button kind="quiet" disabled={busy} onClick={reset}>
              Reset
            </Button>
          </div>
        </>
      }
      command={`penstock calc sampling probabilities=${shaped.slice(0, 8).map((one) => one.raw.toFixed(3)).join(",") || ".42,.15,.12,.08,.06"} --temperature ${state.temperature}${state.top_k ? ` --top-k ${state.top_k}` : ""} --top-p ${state.top_p}`}
    >
      {fault && <Note kind="bad">{fault}</Note>}
      <Card title="Text so far" about="Chips are shaded by the probability they were drawn with.">
        <div class="tokens">
          <span class="token given">{state.prompt}</span>
          {chips.map((chip, number) => (
            <button key={number} type="button" title={percent(chip.share)} class={`token heat${chip.share >= 0.9 ? 0 : chip.share >= 0.6 ? 1 : chip.share >= 0.3 ? 2 : chip.share >= 0.1 ? 3 : 4} ${chip.forced ? "draft" : ""}`} onClick={() => { setChips(chips.slice(0, number)); setRivals(chip.rivals); setEnd(""); }}>
              {chip.token.replaceAll("\n", "⏎")}
            </button>
          ))}
        </div>
        {end && <p class="small muted">{end}</p>}
      </Card>
      <Card title="The next token" about="Twenty rivals and the tail. Click one to force it." aside={<Legend items={[["idle", "the model's own"], ["decode", "reshaped"], ["hatched", "cut"]]} />}>
        {shaped.length === 0 ? (
          <p class="empty">Ask the model: it answers with a probability for every token it knows.</p>
        ) : (
          <div class="bars">
            {shaped.map((one) => (
              <button key={one.id} type="button" class="bar-row" title={`token ${one.id}`} disabled={busy} onClick={() => void step(one.id)}>
                <span class="mono">{one.token.replaceAll("\n", "⏎") || "∅"}</span>
                <span class="bar-track">
                  <i class="raw" style={{ width: `${100 * one.raw}%` }} />
                  <i class={one.kept ? "shaped" : "cut"} style={{ width: `${100 * (one.kept ? one.share : one.raw)}%` }} />
                </span>
                <span class="mono right">{one.kept ? percent(one.share) : "cut"}</span>
              </button>
            ))}
          </div>
        )}
        <Stats>
          <Stat label="entropy" value={significant(entropy)} unit="bits" />
          <Stat label="kept" value={shaped.filter((one) => one.kept).length} note={`of ${shaped.length} listed`} />
          <Stat label="tail" value={percent(Math.max(1 - listed, 0))} note="all other tokens" />
          <Stat label="drawn so far" value={chips.length} />
        </Stats>
      </Card>
      {branches.length > 0 && (
        <Card title="Branches you forced">
          <ul class="plain small mono">
            {branches.map((one, number) => (
              <li key={number}>{one}</li>
            ))}
          </ul>
        </Card>
      )}
    </Frame>
  );
}
