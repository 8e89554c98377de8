/** 7: which batch. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { about } from "../../about";
import { card } from "../../data/cards";
import { count, percent, seconds } from "../../format";
import { useLive, useStream } from "../../live";
import { calculate, only, type Sheet, simulate } from "../../tools";
import { Plot } from "../../ui/draw";
import { Frontier, present } from "../../ui/frontier";
import { useAsked, useKept } from "../../ui/hooks";
import { Card, Note, Results, Select, Slider, Spinner, Stat, Stats, Table } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { model: "llama-3.1-8b", hardware: "h100-sxm", tpot: 100, ttft: 500, context: 1000 };
const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

interface Row {
  batch: number;
  step: number;
  /** None: its keys and values do not fit. */
  tokens: number | null;
  bound: string;
}
const fits = (row: Row): row is Row & { tokens: number } => row.tokens !== null;
const batchOf = (sheet: Sheet): number => Number(sheet.inputs["batch"]);

export function Throughput(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const asked = useAsked(
    async (signal) => {
      const ask = (batch: number) => calculate("throughput", { model: state.model, hardware: state.hardware, batch, context: state.context }, signal);
      const found = await Promise.all(BATCHES.map(ask));
      const largest = found[0]!.values["largest_batch"] ?? Infinity;
      const isBetween = largest > 0 && largest < BATCHES.at(-1)! && !BATCHES.includes(largest);
      return [...found, ...(isBetween ? [await ask(largest)] : [])].sort((one, other) => batchOf(one) - batchOf(other));
    },
    [state.model, state.hardware, state.context],
  );
  const rates = useAsked(
    async (signal) => {
      const found = [];
      for (const rate of [5, 10, 20, 30, 40]) {
        const run = await simulate({ model: state.model, hardware: state.hardware, rate, "num-requests": 400, "max-context": 8192, "ttft-s": state.ttft / 1000, "tpot-s": state.tpot / 1000 }, { lane: "throughput", signal });
        found.push({ rate, outcome: only(run) });
      }
      return found;
    },
    [state.model, state.hardware, state.tpot, state.ttft],
    600,
  );
  const rows: Row[] = asked.value?.map((sheet) => ({ batch: batchOf(sheet), step: sheet.values["step_s"]!, tokens: sheet.values["tokens_per_s"] ?? null, bound: String(sheet.values["bound"]) })) ?? [];
  const real = rows.filter(fits);
  const within = real.filter((row) => row.step * 1000 <= state.tpot);
  const [best, largest] = [within.at(-1), real.at(-1)];
  const knee = real.find((row, index) => index > 0 && row.tokens / real[index - 1]!.tokens < (row.batch / real[index - 1]!.batch) ** 0.485);
  const isCut = real.length < rows.length;
  const refusal = isCut ? asked.value?.at(-1)?.notes[0] : undefined;
  return (
    <Frame
      card={card("throughput")}
      state={state}
      command={`penstock calc throughput --model ${state.model} --hardware ${state.hardware} --batch ${best?.batch ?? 1} --context ${state.context}`}
      controls={
        <>
          <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
          <Select label="Device" value={state.hardware} options={about.value?.devices ?? [state.hardware]} onChange={(hardware) => set({ hardware })} />
          <Slider label="Most TPOT, ms" value={state.tpot} min={5} max={500} log onChange={(tpot) => set({ tpot })} />
          <Slider label="Most TTFT, ms" value={state.ttft} min={20} max={5000} log onChange={(ttft) => set({ ttft })} />
          <Slider label="Context of a sequence" value={state.context} min={0} max={16_000} step={100} onChange={(context) => set({ context })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      {refusal && <Note kind={largest ? "warn" : "bad"}>{refusal}.</Note>}
      <Card title="Tokens a second and TPOT by batch" about="Shaded: batches within the SLO. Hatched: batches whose KV does not fit the device.">
        {rows.length > 0 && (
          <Plot
            label="Throughput and latency by batch"
            height={280}
            x={rows.map((row) => row.batch)}
            logX
            xLabel="sequences in a step"
            yLabel="tokens/s"
            y2Label="TPOT"
            format2={seconds}
            band={[0.5, best?.batch ?? 0.6]}
            refused={isCut ? { from: largest?.batch ?? 0, text: "KV does not fit" } : undefined}
            mark={knee ? { x: knee.batch, text: "knee" } : undefined}
            lines={[
              { label: "tokens/s", values: rows.map((row) => row.tokens), colour: "decode", points: true },
              { label: "goodput", values: rows.map((row) => (row.tokens !== null && row.step * 1000 > state.tpot ? 0 : row.tokens)), colour: "cached", dash: [5, 4] },
              { label: "TPOT", values: rows.map((row) => (fits(row) ? row.step : null)), colour: "prompt", right: true, points: true },
            ]}
          />
        )}
        <Stats>
          <Stat label="best batch" value={best ? count(best.batch) : "none"} kind={best ? "good" : "bad"} note="the largest that fits within the SLO" />
          <Stat label="its tokens/s" value={count(best?.tokens ?? 0)} />
          <Stat label="its TPOT" value={seconds(best?.step)} />
          <Stat label={isCut ? "largest batch that fits" : "tokens/s at 512"} value={isCut ? count(largest?.batch ?? 0) : count(largest?.tokens ?? 0)} note={seconds(largest?.step)} />
        </Stats>
      </Card>
      <Trade rows={real} />
      <Card title="Gain of each doubling">
        <Table label="Gain of each doubling" columns={[["batch", "n"], ["TPOT", "n"], ["tokens/s", "n"], ["gain", "n"], ["bound by", ""]]} rows={rows.map((row, index) => (fits(row) ? [count(row.batch), seconds(row.step), count(row.tokens), index ? `+${percent(row.tokens / rows[index - 1]!.tokens! - 1)}` : "–", row.bound] : [count(row.batch), "–", "–", "–", "does not fit"]))} />
      </Card>
      <Card title="The same with arrivals" about="400 chat requests at each rate, by the simulator." aside={rates.busy ? <Spinner text="simulating" /> : undefined}>
        <Results of={rates}>{rates.value && <Table label="Simulated rates" columns={[["requests/s", "n"], ["tokens/s", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"], ["goodput", "n"]]} rows={rates.value.map(({ rate, outcome }) => [count(rate), count(outcome.summary.output_tokens_per_s), seconds(outcome.summary.ttft.p99), seconds(outcome.summary.tpot.p99), percent(outcome.summary.good_fraction)])} />}</Results>
        {rates.fault && <Note kind="bad">{rates.fault}</Note>}
      </Card>
    </Frame>
  );
}

/** The same batches, one against the other; and where this server is, if it writes anything now. */
function Trade({ rows }: { rows: { batch: number; step: number; tokens: number }[] }): JSX.Element {
  useEffect(useStream, []);
  const now = useLive(1);
  const points = rows.map((row) => ({ user: 1 / row.step, all: row.tokens, text: `batch ${row.batch}, TPOT ${seconds(row.step)}` }));
  return (
    <Card title="What all gain each one pays for" about="Each batch a point. A star is this server's present point, of the model it serves.">
      <Frontier label="Throughput against what each user sees" allLabel="tokens/s" curves={[{ label: `batch 1 to ${rows.at(-1)?.batch ?? 1}`, colour: "decode", points }]} dots={present(now)} />
    </Card>
  );
}
