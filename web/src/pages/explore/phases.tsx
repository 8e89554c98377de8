/** 3: prefill and decode on one clock, and on the roofline. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { about } from "../../about";
import { naming, post, told } from "../../api";
import { card } from "../../data/cards";
import { bytes, count, percent, seconds, significant } from "../../format";
import { calculate } from "../../tools";
import { box, Canvas, Plot, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Button, Card, Legend, Note, Select, Slider, Stat, Stats } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { model: "llama-3-70b", hardware: "h100-sxm", prompt: 500, answer: 200, batch: 1, basis: "achievable" };

export function Phases(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const asked = useAsked(
    async (signal) => {
      const common = { model: state.model, hardware: state.hardware };
      const decode = await calculate("throughput", { ...common, batch: state.batch, context: state.prompt, prompt: state.prompt }, signal);
      const ridge = await calculate("roofline", { hardware: state.hardware }, signal);
      return { decode, ridge };
    },
    [state.model, state.hardware, state.prompt, state.batch],
  );
  const [live, setLive] = useState<Record<string, number> | null>(null);
  const [fault, setFault] = useState("");
  const basis = state.basis === "textbook" ? "textbook" : "values";
  const values = asked.value?.decode[basis];
  const ridge = asked.value?.ridge[basis]["ridge"] ?? 0;
  const prefill = values?.["prefill_s"] ?? 0;
  const step = values?.["step_s"] ?? 0;
  const total = prefill + (state.answer - 1) * step;
  const tryLive = async () => {
    try {
      const prompt = "water ".repeat(Math.min(state.prompt, (about.value?.max_context ?? 2048) - state.answer - 32));
      const found = await post<{ usage: { timings: Record<string, number>; prompt_tokens: number; completion_tokens: number } }>("/v1/completions", naming({
        prompt,
        max_tokens: Math.min(state.answer, 64),
        ignore_eos: true,
        return_timings: true,
        cache_salt: String(Math.random()),
      }));
      setLive({ ...found.usage.timings, prompt: found.usage.prompt_tokens, tokens: found.usage.completion_tokens });
    } catch (problem) {
      setFault(told(problem));
    }
  };
  const draw = (pen: Pen) => {
    const { c, width } = pen;
    const x = (time: number) => 70 + ((width - 76) * time) / Math.max(total, 1e-9);
    words(pen, "prefill", 0, 18, c.text);
    words(pen, "decode", 0, 54, c.text);
    box(pen, 70, 6, width - 76, 24, c.sunken, 4);
    box(pen, 70, 42, width - 76, 24, c.sunken, 4);
    box(pen, x(0), 6, Math.max(x(prefill) - x(0), 2), 24, c.prompt, 3);
    const ticks = Math.min(state.answer - 1, 400);
    for (let i = 0; i < ticks; i++) {
      const at = prefill + ((i + 1) * (state.answer - 1) * step) / ticks;
      box(pen, x(at) - 0.7, 42, Math.max(((width - 76) / Math.max(ticks, 1)) * 0.6, 0.8), 24, c.decode, 1);
    }
    words(pen, "0", 70, 82, c.muted, "left", 11);
    words(pen, seconds(total), width - 6, 82, c.muted, "right", 11);
  };
  const intensities = [1, state.batch, state.prompt].filter((one) => one > 0);
  const xs = [...new Set([0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 20000, 40000, ridge, state.batch, state.prompt])].filter((one) => one > 0).sort((a, b) => a - b);
  const roof = (intensity: number) => Math.min(intensity / Math.max(ridge, 1e-9), 1) * 100;
  return (
    <Frame
      card={card("phases")}
      state={state}
      command={`penstock calc throughput --model ${state.model} --hardware ${state.hardware} --batch ${state.batch} --context ${state.prompt} --prompt ${state.prompt}`}
      controls={
        <>
          <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
          <Select label="Device" value={state.hardware} options={about.value?.devices ?? [state.hardware]} onChange={(hardware) => set({ hardware })} />
          <Slider label="Prompt, tokens" value={state.prompt} min={1} max={32_768} log onChange={(prompt) => set({ prompt })} />
          <Slider label="Answer, tokens" value={state.answer} min={1} max={4096} log onChange={(answer) => set({ answer })} />
          <Slider label="Batch" value={state.batch} min={1} max={512} log onChange={(batch) => set({ batch })} />
          <Select label="Figures" value={state.basis} options={[["achievable", "achievable (.87 of bandwidth, .74 of compute)"], ["textbook", "textbook peak"]]} onChange={(basis) => set({ basis })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Card title="Two lanes, one clock" aside={<Legend items={[["prompt", "prefill: one burst"], ["decode", "decode: a pass a token"]]} />}>
        <div class="stack">
          <Canvas height={92} label={`Prefill ${seconds(prefill)}, then ${state.answer} tokens of ${seconds(step)}`} draw={draw} />
          <Stats>
            <Stat label="prefill" name="prefill" value={seconds(prefill)} note="sets TTFT" />
            <Stat label="a token" name="step" value={seconds(step)} note="sets TPOT" />
            <Stat label="in all" value={seconds(total)} note="prefill + (n − 1) TPOT" />
            <Stat label="decode MFU" value={percent(values?.["mfu"] ?? 0)} note={`MBU ${percent(values?.["mbu"] ?? 0)}`} />
            <Stat label="bytes a step" value={bytes(values?.["step_bytes"] ?? 0)} />
          </Stats>
        </div>
      </Card>
      <Card title="On the roofline" about={`Left of ${count(ridge)} FLOP a byte the memory decides, right of it the arithmetic. Intensity is about the tokens of a step.`}>
        <Plot
          label="Roofline with both phases"
          x={xs}
          logX
          logY
          xLabel="FLOP per byte"
          yLabel="% of compute"
          lines={[
            { label: "roof", values: xs.map(roof), colour: "muted" },
            { label: "prefill", values: xs.map((x) => (x === state.prompt ? roof(x) : null)), colour: "prompt", points: true },
            { label: "decode", values: xs.map((x) => (x === state.batch ? roof(x) : null)), colour: "decode", points: true },
          ]}
          mark={{ x: ridge, text: "ridge" }}
        />
        <p class="small muted">Intensities {intensities.map((one) => significant(one)).join(", ")}.</p>
      </Card>
      <Card title="The same live" about="A prompt nobody has sent before, on the model being served.">
        <div class="stack">
          <Button onClick={() => void tryLive()}>Send it</Button>
          {fault && <Note kind="bad">{fault}</Note>}
          {live && (
            <Stats>
              <Stat label="prompt" value={count(live["prompt"] ?? 0)} unit="tokens" />
              <Stat label="prefill" value={seconds((live["prefill_ms"] ?? 0) / 1000)} />
              <Stat label="a prompt token" value={seconds((live["prefill_ms"] ?? 0) / 1000 / (live["prompt"] ?? 1))} />
              <Stat label="a token written" value={seconds((live["decode_ms"] ?? 0) / 1000 / Math.max((live["tokens"] ?? 2) - 1, 1))} />
            </Stats>
          )}
        </div>
      </Card>
    </Frame>
  );
}
