/** 11: when guessing pays. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { card } from "../../data/cards";
import { count, percent, seconds, significant } from "../../format";
import { calculate, commandOf, type Flags, only, simulate } from "../../tools";
import { box, Canvas, Plot, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Button, Card, Legend, Note, Results, Slider, SourceBadge, Spinner, Stat, Stats, Table, TextField } from "../../ui/kit";
import { DEFAULTS as SETTINGS, streamed } from "../playground/settings";
import { answer } from "../playground/stream";
import { Tree, type Turn } from "../playground/tree";
import { Frame } from "./frame";

const DEFAULTS = { drafts: 5, acceptance: 0.8, cost: 0.057, batch: 1, off: 256, seed: 1 };

export function Speculation(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const asked = useAsked((signal) => calculate("speculation", { acceptance: state.acceptance, drafts: state.drafts, draft_cost: state.cost }, signal), state);
  const flags: Flags = { model: "llama-3.1-8b", hardware: "h100", rate: 0, "num-requests": Math.max(state.batch * 2, 8), prompts: "200", answers: "200", "max-sequences": state.batch, "max-context": 8192, "max-waiting": 100_000 };
  const spoken: Flags = { ...flags, speculate: state.drafts, acceptance: state.acceptance, "draft-cost": state.cost, "speculate-up-to": state.off };
  const runs = useAsked(async (signal) => [only(await simulate(flags, { lane: "plain", signal })), only(await simulate(spoken, { lane: "spoken", signal }))] as const, [flags, spoken], 400);
  const rounds = useMemo(() => play(state.drafts, state.acceptance, state.seed), [state.drafts, state.acceptance, state.seed]);
  const tau = asked.value?.values["tokens_per_round"] ?? 0;
  const gain = asked.value?.values["gain"] ?? 0;
  const gammas = Array.from({ length: 12 }, (_, index) => index + 1);
  const gainOf = (g: number) => (1 - state.acceptance ** (g + 1)) / (1 - state.acceptance) / (1 + g * state.cost);
  const draw = (pen: Pen) => {
    const { c, width } = pen;
    const size = Math.min(26, (width - 60) / 42);
    words(pen, "drafted", 0, 14, c.muted);
    let x = 60;
    for (const round of rounds) {
      if (x > width - 20) break;
      for (const verdict of round) {
        const colour = verdict === "accepted" ? c.decode : verdict === "rejected" ? c.bad : verdict === "unused" ? c.idle : c.prompt;
        box(pen, x, 24, size - 3, 18, colour, verdict === "drawn" ? 9 : 3);
        if (verdict !== "drawn") box(pen, x, 4, size - 3, 16, c.draft, 2);
        x += size;
      }
      x += 8;
    }
    words(pen, "verdict", 0, 33, c.muted);
    words(pen, "plain", 0, 60, c.muted);
    const pace = size * (1 + state.drafts * 0.6) + 8;
    for (let at = 60; at < width - 20; at += pace) box(pen, at, 52, size - 3, 16, c.prompt, 9);
  };
  return (
    <Frame
      card={card("speculation")}
      state={state}
      command={`penstock calc speculation acceptance=${state.acceptance} drafts=${state.drafts} draft-cost=${state.cost}\n${commandOf("simulate", spoken)}`}
      controls={
        <>
          <Slider label="Drafts a round γ" value={state.drafts} min={1} max={12} onChange={(drafts) => set({ drafts })} />
          <Slider label="Acceptance α" value={state.acceptance} min={0.3} max={0.99} step={0.01} onChange={(acceptance) => set({ acceptance })} />
          <Slider label="Cost of a draft step" value={state.cost} min={0} max={0.5} step={0.001} onChange={(cost) => set({ cost })} />
          <Slider label="Batch" value={state.batch} min={1} max={256} log onChange={(batch) => set({ batch })} />
          <Slider label="Off above sequences" value={state.off} min={1} max={256} log onChange={(off) => set({ off })} />
          <Slider label="Luck of the drawing" value={state.seed} min={1} max={50} onChange={(seed) => set({ seed })} />
        </>
      }
    >
      <Card title="Rounds" aside={<Legend items={[["draft", "draft"], ["decode", "accepted"], ["bad", "rejected"], ["idle", "after it, unused"], ["prompt", "drawn by the model"]]} />}>
        <Canvas height={76} label={`Rounds of ${state.drafts} drafts`} draw={draw} />
      </Card>
      <Stats>
        <Stat label="tokens a round τ" name="tau" value={tau.toFixed(2)} note="(1 − α^(γ+1)) / (1 − α)" />
        <Stat label="gain" name="gain" value={`${gain.toFixed(2)} ×`} note="τ / (1 + γ c)" kind={gain > 1 ? "good" : "bad"} />
        <Stat label="last draft accepted" value={percent(state.acceptance ** state.drafts)} note="all before it too" />
      </Stats>
      <Card title="How many drafts?">
        <Plot label="Gain by number of drafts" height={200} x={gammas} xLabel="drafts a round" yLabel="gain" lines={[{ label: "gain", values: gammas.map(gainOf), colour: "draft", points: true }, { label: "no gain", values: gammas.map(() => 1), colour: "muted", dash: [4, 4] }]} mark={{ x: state.drafts, text: `γ = ${state.drafts}` }} />
      </Card>
      <Card title={`In a batch of ${count(state.batch)}`} about="8B on one H100 by the simulator, twice as many requests as slots: the larger the batch, the less idle compute there is to guess with. TTFT counts the wait for a slot, which shortens with the answers; the prompt itself takes as long as before." aside={runs.busy ? <Spinner text="simulating" /> : undefined}>
        {runs.fault && <Note kind="bad">{runs.fault}</Note>}
        <Results of={runs}>{runs.value && (
          <Table
            label="Plain beside speculated"
            columns={[["", ""], ["plain", "n"], ["speculated", "n"], ["ratio", "n"]]}
            rows={(
              [
                ["TPOT p50", (one) => one.summary.tpot.p50, seconds],
                ["TTFT p50", (one) => one.summary.ttft.p50, seconds],
                ["tokens/s", (one) => one.summary.output_tokens_per_s, count],
              ] as [string, (one: ReturnType<typeof only>) => number, (value: number) => string][]
            ).map(([name, pick, format]) => [name, format(pick(runs.value![0])), format(pick(runs.value![1])), `${significant(pick(runs.value![1]) / pick(runs.value![0]))} ×`])}
          />
        )}</Results>
      </Card>
      <ServedDrafts />
    </Frame>
  );
}

const PROSE = "Repeat this sentence word for word, twice: the water runs from the dam through the penstock to the turbine, and from the turbine to the river below.";

/** The served model's own drafts: which of its tokens were guessed before they were drawn. */
function ServedDrafts(): JSX.Element {
  const [prompt, setPrompt] = useState(PROSE);
  const [turn, setTurn] = useState<Turn | null>(null);
  const [busy, setBusy] = useState(false);
  const [, setCount] = useState(0);
  const run = async () => {
    const made = new Tree().add("assistant", "", 0);
    setTurn(made);
    setBusy(true);
    await answer(made, { ...streamed({ ...SETTINGS, temperature: 0, max_tokens: 96 }, [{ role: "user", content: prompt }]), speculate: 4 }, new AbortController().signal, () => setCount((value) => value + 1));
    setBusy(false);
  };
  const timings = turn?.usage?.timings;
  const [checked, accepted] = [timings?.["draft_tokens"] ?? 0, timings?.["accepted_draft_tokens"] ?? 0];
  const tokens = turn?.usage?.completion_tokens ?? 0;
  return (
    <Card title="The served model's drafts" about="A real request: tokens that were guessed and came true are marked; a step that checks drafts may give several." aside={<SourceBadge source="live" />}>
      <div class="stack">
        <TextField label="Prompt" value={prompt} rows={2} onChange={setPrompt} />
        <div class="row">
          <Button kind="primary" disabled={busy} onClick={() => void run()}>
            {busy ? "Answering" : "Try it live"}
          </Button>
        </div>
        {turn?.state === "failed" && <Note kind="bad">{turn.note}</Note>}
        {turn && turn.tokens.length > 0 && (
          <div class="tokens" aria-label="Tokens with accepted drafts marked">
            {turn.tokens.map((one, index) => (
              <span key={index} class={`token ${one.draft ? "draft" : ""}`} title={one.draft ? "an accepted draft" : "drawn by the model"}>
                {one.token.replaceAll("\n", "⏎")}
              </span>
            ))}
          </div>
        )}
        {turn?.usage && checked > 0 && (
          <Stats>
            <Stat label="drafts checked" value={count(checked)} />
            <Stat label="accepted" name="live-acceptance" value={percent(accepted / checked)} note={`${count(accepted)} tokens`} />
            <Stat label="tokens a step" value={significant(tokens / Math.max(tokens - accepted, 1))} note="1 without drafts" />
          </Stats>
        )}
        {turn?.usage && checked === 0 && <Note>Nobody guessed here: this server drafts nothing, or nothing was worth guessing. It does with <code>penstock serve --speculate auto</code>.</Note>}
      </div>
    </Card>
  );
}

type Verdict = "accepted" | "rejected" | "unused" | "drawn";
function play(drafts: number, acceptance: number, seed: number): Verdict[][] {
  let x = seed * 7919;
  const next = () => {
    x = (x * 16807) % 2147483647;
    return x / 2147483647;
  };
  return Array.from({ length: 14 }, () => {
    const round: Verdict[] = [];
    let alive = true;
    for (let i = 0; i < drafts; i++) {
      if (!alive) round.push("unused");
      else if (next() < acceptance) round.push("accepted");
      else {
        round.push("rejected");
        alive = false;
      }
    }
    round.push("drawn");
    return round;
  });
}
