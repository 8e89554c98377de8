/** 15: prompts and answers together, chunked, or on machines of their own. */
import type { JSX } from "preact";
import { card } from "../../data/cards";
import { percent, seconds } from "../../format";
import { commandOf, film, type Flags, isUnstable, only, simulate } from "../../tools";
import { box, Canvas, Plot, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Badge, Card, Legend, Note, Results, Select, Slider, Spinner, Stat, Stats } from "../../ui/kit";
import { Frame } from "./frame";
import { Stutter } from "./stutter";

const DEFAULTS = { rate: 4, prompt: 6000, answer: 200, budget: 8192, requests: 600, mode: "all", prefill: 1, decode: 1, link: 50, long: 1000 };
const MODES = [["all", "all three"], ["together", "together"], ["chunked", "together, chunks of 512"], ["split", "split"]] as const;

export function Split(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const base: Flags = { model: "llama-3.1-8b", hardware: "h100", rate: state.rate, "num-requests": state.requests, prompts: String(state.prompt), answers: String(state.answer), "max-context": 16_384, "max-waiting": 100_000, "max-waiting-tokens": 1_000_000_000, "ttft-s": 0.5, "tpot-s": 0.05 };
  const devices = state.prefill + state.decode;
  const all: [string, string, Flags][] = [
    ["together", "together", { ...base, replicas: devices, "max-batch-tokens": state.budget }],
    ["chunked", "together, chunks of 512", { ...base, replicas: devices, "max-batch-tokens": 512 }],
    ["split", `split, ${state.prefill} prefill : ${state.decode} decode`, { ...base, replicas: state.decode, "prefill-replicas": state.prefill, "transfer-gb-s": state.link, "max-batch-tokens": state.budget }],
  ];
  const modes = all.filter(([mode]) => state.mode === "all" || state.mode === mode).map(([, name, flags]) => [name, flags] as const);
  const asked = useAsked(
    async (signal) => {
      const found = [];
      for (const [name, flags] of modes) found.push([name, await simulate(flags, { lane: "split", frames: true, signal })] as const);
      return found;
    },
    { ...state, long: 0 },
    400,
  );
  return (
    <Frame
      card={card("split")}
      state={state}
      command={modes.map(([, flags]) => commandOf("simulate", flags)).join("\n")}
      controls={
        <>
          <Select label="Mode" value={state.mode} options={MODES} onChange={(mode) => set({ mode })} />
          <Slider label="Prefill devices P" value={state.prefill} min={1} max={4} onChange={(prefill) => set({ prefill })} />
          <Slider label="Decode devices D" value={state.decode} min={1} max={4} hint="Together, all P + D serve alike." onChange={(decode) => set({ decode })} />
          <Slider label="Link between them, GB/s" value={state.link} min={1} max={900} log onChange={(link) => set({ link })} />
          <Slider label="Requests a second" value={state.rate} min={1} max={20} step={0.5} onChange={(rate) => set({ rate })} />
          <Slider label="Prompt, tokens" value={state.prompt} min={100} max={12_000} step={100} onChange={(prompt) => set({ prompt })} />
          <Slider label="Answer, tokens" value={state.answer} min={10} max={1000} step={10} onChange={(answer) => set({ answer })} />
          <Slider label="Step budget, tokens" value={state.budget} min={512} max={16_384} step={512} onChange={(budget) => set({ budget })} />
          <Slider label="Requests in the run" value={state.requests} min={100} max={1500} step={100} onChange={(requests) => set({ requests })} />
          <Slider label="Long prompt here, tokens" value={state.long} min={100} max={8000} step={100} hint="Of the trial on this server, below." onChange={(long) => set({ long })} />
          {asked.busy && <Spinner text="simulating" />}
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Results of={asked}>{asked.value?.map(([name, run]) => {
        const { summary, num_transfers: transfers, mean_transfer_s: transfer } = only(run);
        const frames = film(run)!;
        const unstable = isUnstable(run);
        return (
          <Card key={name} title={name} aside={unstable ? <Badge kind="bad">unstable</Badge> : undefined}>
            <div class="stack">
              <Canvas height={frames.replicas.length * 34 + 18} label={`Lanes, ${name}`} draw={(pen) => lanes(pen, frames.replicas, 8)} />
              <Stats>
                <Stat label="ITL p50" value={seconds(summary.itl.p50)} />
                <Stat label="ITL p99" name={`${name} itl`} value={seconds(summary.itl.p99)} kind={summary.itl.p99 > 5 * summary.itl.p50 ? "bad" : "good"} />
                <Stat label="TTFT p99" name={`${name} ttft`} value={unstable ? "–" : seconds(summary.ttft.p99)} note={unstable ? "unstable" : undefined} />
                <Stat label="goodput" value={percent(summary.good_fraction)} kind={summary.good_fraction > 0.9 ? "good" : "bad"} />
                {transfers > 0 && <Stat label="KV handed over in" value={seconds(transfer)} note="keys and values / link" />}
              </Stats>
            </div>
          </Card>
        );
      })}
      {asked.value && (
        <Card title="Gaps between tokens">
          <Plot label="ITL percentiles" height={180} x={[50, 90, 95, 99]} xLabel="percentile" logY format={seconds} lines={asked.value.map(([name, run], index) => ({ label: name, values: (["p50", "p90", "p95", "p99"] as const).map((key) => only(run).summary.itl[key]), colour: (["prompt", "decode", "cached"] as const)[index] ?? "decode", points: true }))} />
        </Card>
      )}</Results>
      <Legend items={[["prompt", "steps with prompt tokens"], ["decode", "decoding only"]]} />
      <Stutter prompt={state.long} />
    </Frame>
  );
}

function lanes(pen: Pen, replicas: { name: string; steps: [number, number, number, number, number][] }[], span: number): void {
  const { c, width } = pen;
  const from = 4;
  replicas.forEach((replica, row) => {
    const y = row * 34;
    words(pen, replica.name, 0, y + 8, c.muted, "left", 11);
    box(pen, 0, y + 16, width, 14, c.sunken, 3);
    for (const [start, end, , , prompt] of replica.steps) {
      if (end < from || start > from + span) continue;
      const x = (time: number) => (width * Math.min(Math.max(time - from, 0), span)) / span;
      box(pen, x(start), y + (prompt ? 14 : 18), Math.max(x(end) - x(start) - 0.4, 0.8), prompt ? 18 : 10, prompt ? c.prompt : c.decode, 1);
    }
  });
  words(pen, `${from} s to ${from + span} s of the run`, width, replicas.length * 34 + 8, c.muted, "right", 11);
}
