/** 13: what is split, and who must talk. */
import type { JSX } from "preact";
import { about } from "../../about";
import { card } from "../../data/cards";
import { bytes, count, seconds, significant } from "../../format";
import { calculate, commandOf, type Flags, only, simulate } from "../../tools";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Card, Legend, Note, Results, Select, Slider, Spinner, Stat, Stats, Table } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { model: "llama-3.1-70b", hardware: "h100-sxm", devices: 8, way: "TP", requests: 64 };
const WAYS: Record<string, (devices: number) => Flags> = {
  TP: (devices) => ({ tensor: devices }),
  PP: (devices) => ({ pipeline: devices }),
  DP: (devices) => ({ replicas: devices }),
  "TP + PP": (devices) => ({ tensor: Math.max(devices / 2, 1), pipeline: Math.min(2, devices) }),
  EP: (devices) => ({ tensor: devices, expert: devices }),
  "TP + DP": (devices) => ({ tensor: Math.max(devices / 2, 1), replicas: Math.min(2, devices) }),
};

function flagsOf({ model, hardware, devices, way, requests }: typeof DEFAULTS): Flags {
  return { model, hardware, rate: 0, "num-requests": requests, prompts: "500", answers: "200", "max-context": 8192, "max-waiting": 100_000, policy: "round-robin", ...WAYS[way]!(devices) };
}

export function Parallelism(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const shape = useAsked((signal) => calculate("memory", { model: state.model, hardware: state.hardware }, signal), [state.model, state.hardware]);
  const mixture = useAsked((signal) => calculate("throughput", { model: state.model, hardware: state.hardware }, signal), [state.model, state.hardware]);
  const links = useAsked((signal) => Promise.all((["interconnect", "network"] as const).map((way) => calculate("transfer", { moved: 1e6, hardware: state.hardware, way }, signal))), [state.hardware]);
  const quantity = (key: string, sheet = shape.value) => Number(sheet?.quantities.find((one) => one.key === key)?.value ?? 0);
  const [layers, hidden] = [quantity("layers") || 80, quantity("hidden") || 8192];
  const isMixture = quantity("active_parameters", mixture.value) < 0.6 * quantity("parameters", mixture.value);
  const runs = useAsked(
    async (signal) => {
      const found: [string, Awaited<ReturnType<typeof simulate>> | string][] = [];
      for (const way of Object.keys(WAYS)) {
        if (way === "EP" && !isMixture) {
          found.push([way, "a dense model has no experts to deal out; choose a mixture, such as qwen3-30b-a3b"]);
          continue;
        }
        try {
          found.push([way, await simulate(flagsOf({ ...state, way }), { lane: "parallel", signal })]);
        } catch (problem) {
          if (signal.aborted) throw problem;
          found.push([way, (problem as Error).message]);
        }
      }
      return { devices: state.devices, found };
    },
    [state.model, state.hardware, state.devices, state.requests, isMixture],
    400,
  );
  const [near, far] = (links.value ?? []).map((sheet) => sheet.quantities.find((one) => one.key === "link")!);
  const kindOf = (origin: string) => / of (\S+) of/.exec(origin.replace("the peak of ", "of "))?.[1] ?? "link";
  const flags = flagsOf(state);
  const [tp, pp, dp] = [Number(flags["tensor"] ?? 1), Number(flags["pipeline"] ?? 1), Number(flags["replicas"] ?? 1)];
  const sums = tp > 1 ? (2 * layers * hidden * 2 * 2 * (tp - 1)) / tp : 0;
  const hops = (pp - 1) * hidden * 2;
  const ep = Number(flags["expert"] ?? 1);
  const spans = tp > 8 ? far : near;
  const rate = Number(spans?.value ?? NaN);
  const rows = (runs.value?.found ?? []).flatMap(([way, run]) => (typeof run === "string" ? [] : [{ way, run, tpot: only(run).summary.tpot.p50, each: only(run).summary.output_tokens_per_s / runs.value!.devices }]));
  const quickest = rows.reduce<(typeof rows)[0] | undefined>((best, one) => (!best || one.tpot < best.tpot ? one : best), undefined);
  const fullest = rows.reduce<(typeof rows)[0] | undefined>((best, one) => (!best || one.each > best.each ? one : best), undefined);
  const found = runs.value?.found.find(([way]) => way === state.way)?.[1];
  const draw = (pen: Pen) => {
    const { c, width, ctx } = pen;
    const columns = Math.min(state.devices, 8);
    const size = Math.min((width - 20) / columns - 10, 120);
    for (let device = 0; device < state.devices; device++) {
      const [column, row] = [device % 8, Math.floor(device / 8)];
      const [x, y] = [10 + column * (size + 10), 16 + row * 118];
      box(pen, x, y, size, 86, c.sunken, 8);
      const [rank, stage, copy] = [device % tp, Math.floor(device / tp) % pp, Math.floor(device / (tp * pp))];
      const colours = [c.decode, c.cached, c.draft, c.prompt];
      const [w, h] = [size - 16, 54];
      box(pen, x + 8, y + 10, w, h, c.panel, 4);
      ctx.globalAlpha = 0.9;
      box(pen, x + 8 + (w * rank) / tp, y + 10 + (h * stage) / pp, w / tp, (h * (ep > 1 ? 0.4 : 1)) / pp, colours[copy % 4]!, 3);
      if (ep > 1) experts(pen, x + 8, y + 36, w, device, ep);
      ctx.globalAlpha = 1;
      if (pp > 1 && stage > 0) hatch(pen, x + 8, y + 10, w, (h * stage) / pp, c.idle);
      words(pen, `${device}`, x + size / 2, y + 75, c.muted, "center", 11);
      const isLastRank = rank === tp - 1;
      if (tp > 1 && !isLastRank) line(pen, x + size, y + 30, x + size + 10, y + 30, c.bad, Math.min(1 + sums / 2e6, 6));
      if (pp > 1 && isLastRank && stage < pp - 1 && column < 7) line(pen, x + size, y + 50, x + size + 10, y + 50, c.prompt, 1.5);
    }
    words(pen, tp > 1 ? `2 sums a layer: ${bytes(sums)} a token${ep > 1 ? ", experts whole" : ""}` : pp > 1 ? `one hop a stage: ${bytes(hops)} a token` : "nobody talks", 10, 8, c.muted, "left", 12);
  };
  return (
    <Frame
      card={card("parallelism")}
      state={state}
      command={commandOf("simulate", flags)}
      note={<Note kind="warn" title="A doubt">The model&apos;s link costs make TP16 over two nodes beat TP8 × PP2 in TPOT for 405B (29 against 40 ms); take that with doubt: it assumes an ideal network.</Note>}
      controls={
        <>
          <Select label="Split" value={state.way} options={Object.keys(WAYS)} onChange={(way) => set({ way })} />
          <Slider label="Devices" value={state.devices} min={1} max={16} onChange={(devices) => set({ devices: devices > 1 ? 2 ** Math.round(Math.log2(devices)) : 1 })} />
          <Slider label="Requests at once" value={state.requests} min={8} max={512} log onChange={(requests) => set({ requests })} />
          <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
          <Select label="Device" value={state.hardware} options={about.value?.devices ?? [state.hardware]} onChange={(hardware) => set({ hardware })} />
        </>
      }
    >
      <Card title={`${count(state.devices)} devices, ${state.way}`} aside={<Legend items={[["decode", "its share of every matrix"], ["cached", "its experts"], ["bad", "sums"], ["prompt", "hand-over"], ["hatched", "others' layers"]]} />}>
        <Canvas height={state.devices > 8 ? 250 : 130} label={`${state.devices} devices under ${state.way}`} draw={draw} />
        <Results of={runs}>{found && typeof found !== "string" && (
          <Stats>
            <Stat label="weights a device" value={bytes(found.report.sizing.weight_bytes)} />
            <Stat label="KV blocks a replica" value={count(found.report.sizing.num_blocks)} />
            <Stat label="traffic a token" value={bytes(sums + hops)} note={sums + hops ? `${seconds((sums + hops) / rate)} over ${kindOf(spans?.origin ?? "")}${ep > 1 ? "; as TP, with experts met evenly" : ""}` : "nobody talks"} />
            <Stat label="replicas" value={count(dp)} note="devices / (TP × PP)" />
            <Stat label="TPOT" value={seconds(only(found).summary.tpot.p50)} />
            <Stat label="tokens/s a device" value={significant(only(found).summary.output_tokens_per_s / runs.value!.devices)} />
          </Stats>
        )}</Results>
        {typeof found === "string" && <Note kind="bad">{found}</Note>}
      </Card>
      <Stats>
        <Stat label="link inside a node" name="near" value={`${bytes(Number(near?.value ?? NaN))}/s`} note={kindOf(near?.origin ?? "")} />
        <Stat label="link between nodes" name="far" value={`${bytes(Number(far?.value ?? NaN))}/s`} note={`${kindOf(far?.origin ?? "")}${tp > 8 ? ": sums cross it" : ""}`} kind={tp > 8 ? "warn" : ""} />
        {!runs.busy && quickest && <Stat label="lowest TPOT" name="quickest" value={quickest.way} note={seconds(quickest.tpot)} />}
        {!runs.busy && fullest && <Stat label="most tokens a device" name="fullest" value={fullest.way} note={`${significant(fullest.each)} tokens/s`} />}
      </Stats>
      <Card title="All ways beside each other" about={`${count(state.requests)} requests at once, prompts of 500, answers of 200.`} aside={runs.busy ? <Spinner text="simulating" /> : undefined}>
        <Results of={runs}>{runs.value && (
          <Table
            label="Layouts"
            columns={[["layout", ""], ["TPOT p50", "n"], ["TTFT p50", "n"], ["tokens/s", "n"], ["a device", "n"], ["weights a device", "n"]]}
            rows={runs.value.found.map(([way, run]) => (typeof run === "string" ? [way, "–", "–", "–", "–", "–"] : [way, seconds(only(run).summary.tpot.p50), seconds(only(run).summary.ttft.p50), count(only(run).summary.output_tokens_per_s), count(only(run).summary.output_tokens_per_s / runs.value!.devices), bytes(run.report.sizing.weight_bytes)]))}
          />
        )}
        {runs.value?.found.map(([way, run]) => typeof run === "string" && <p key={way} class="small muted"><b>{way}</b>: {run}</p>)}</Results>
        {runs.fault && <Note kind="bad">{runs.fault}</Note>}
      </Card>
    </Frame>
  );
}

/** A row of the model's experts, those of this device filled. */
function experts(pen: Pen, x: number, y: number, width: number, device: number, ways: number): void {
  const { c } = pen;
  const [count, size] = [16, width / 16];
  for (let expert = 0; expert < count; expert++) {
    const isHere = Math.floor((expert * ways) / count) === device % ways || (ways > count && expert === device % count);
    box(pen, x + expert * size, y + 6, Math.max(size - 1.5, 1), 18, isHere ? c.cached : c.idle, 2);
  }
}

function line(pen: Pen, x1: number, y1: number, x2: number, y2: number, colour: string, width: number): void {
  pen.ctx.strokeStyle = colour;
  pen.ctx.lineWidth = width;
  pen.ctx.beginPath();
  pen.ctx.moveTo(x1, y1);
  pen.ctx.lineTo(x2, y2);
  pen.ctx.stroke();
}
