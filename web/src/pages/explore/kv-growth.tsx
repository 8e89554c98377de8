/** 4: the cache against the weights, as context and users grow. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { about } from "../../about";
import { card } from "../../data/cards";
import { bytes, count, percent } from "../../format";
import { live, useStream } from "../../live";
import { calculate } from "../../tools";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Bar, Card, Legend, Note, Select, Slider, Stat, Stats } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { model: "llama-3-70b", hardware: "h200", context: 4096, sequences: 1, kv: "bf16", heads: "as built" };

export function KvGrowth(): JSX.Element {
  useEffect(useStream, []);
  const [state, set] = useKept(DEFAULTS);
  const asked = useAsked(
    async (signal) => {
      const model = { model: state.model, kv: state.kv };
      const [kv, users] = await Promise.all([
        calculate("kv", { ...model, context: state.context, sequences: state.sequences }, signal),
        calculate("users", { ...model, hardware: state.hardware, context: state.context }, signal),
      ]);
      return { kv: kv.values, users: users.values, memory: users.quantities.find((one) => one.key === "memory")?.value as number };
    },
    state,
  );
  const found = asked.value;
  const isMha = state.heads === "all heads (MHA)";
  const total = found ? (isMha ? found.kv["mha_bytes"] ?? found.kv["total_bytes"]! : found.kv["total_bytes"]!) : 0;
  const weights = found?.kv["weight_bytes"] ?? 0;
  const memory = found?.memory ?? 0;
  const perToken = state.sequences * state.context > 0 ? total / (state.sequences * state.context) : 0;
  const workspace = 0.02 * memory;
  const draw = (pen: Pen) => {
    const { c, width, height } = pen;
    const most = Math.max(memory, weights + workspace + total) * 1.08 || 1;
    const y = (value: number) => height - 24 - ((height - 40) * value) / most;
    const [left, w] = [width * 0.24, Math.min(width * 0.3, 180)];
    box(pen, left, y(weights), w, y(0) - y(weights), c.cached, 4);
    words(pen, `weights ${bytes(weights)}`, left + w / 2, (y(0) + y(weights)) / 2, c.panel, "center", 13);
    box(pen, left, y(weights + workspace), w, y(weights) - y(weights + workspace), c.idle, 0);
    const fits = Math.min(total, Math.max(memory - weights - workspace, 0));
    box(pen, left, y(weights + workspace + fits), w, y(weights + workspace) - y(weights + workspace + fits), c.decode, 0);
    if (total > fits) {
      box(pen, left, y(weights + workspace + total), w, y(weights + workspace + fits) - y(weights + workspace + total), c.bad, 4);
      hatch(pen, left, y(weights + workspace + total), w, y(weights + workspace + fits) - y(weights + workspace + total), c.panel);
    }
    pen.ctx.strokeStyle = c.text;
    pen.ctx.setLineDash([6, 4]);
    pen.ctx.beginPath();
    pen.ctx.moveTo(left - 24, y(memory));
    pen.ctx.lineTo(left + w + 24, y(memory));
    pen.ctx.stroke();
    pen.ctx.setLineDash([]);
    words(pen, `${state.hardware} ${bytes(memory)}`, left + w + 30, y(memory), c.text, "left", 12);
    words(pen, `KV ${bytes(total)}`, left + w + 30, y(weights + workspace + total / 2), total > fits ? c.bad : c.text, "left", 13);
    words(pen, `${count(state.sequences)} × ${count(state.context)} tokens`, left + w / 2, height - 10, c.muted, "center", 12);
  };
  const pool = live.value;
  return (
    <Frame
      card={card("kv-growth")}
      state={state}
      command={`penstock calc kv --model ${state.model} --context ${state.context} sequences=${state.sequences} --kv ${state.kv}`}
      controls={
        <>
          <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
          <Select label="Device" value={state.hardware} options={about.value?.devices ?? [state.hardware]} onChange={(hardware) => set({ hardware })} />
          <Slider label="Context, tokens" value={state.context} min={128} max={131_072} log onChange={(context) => set({ context })} />
          <Slider label="Sequences" value={state.sequences} min={1} max={512} log onChange={(sequences) => set({ sequences })} />
          <Select label="Keys and values in" value={state.kv} options={[["bf16", "16 bits"], ["int8", "8 bits"]]} onChange={(kv) => set({ kv })} />
          <Select label="Heads with keys of their own" value={state.heads} options={["as built", "all heads (MHA)"]} onChange={(heads) => set({ heads })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Card title="One device" aside={<Legend items={[["cached", "weights"], ["idle", "workspace"], ["decode", "KV that fits"], ["bad", "over the edge"]]} />}>
        <Canvas height={320} label={`Weights ${bytes(weights)}, KV ${bytes(total)} of ${bytes(memory)}`} draw={draw} />
      </Card>
      <Stats>
        <Stat label="a token" name="kv-token" value={`${count(perToken)} B`} note={isMha ? "as MHA" : "as built"} />
        <Stat label="KV in all" name="kv-total" value={bytes(total)} />
        <Stat label="as MHA" name="kv-mha" value={bytes(found?.kv["mha_bytes"] ?? NaN)} />
        <Stat label="outgrows the weights at" value={count(weights / Math.max(perToken * state.sequences, 1))} unit="tokens each" />
        <Stat label="users that fit" value={count(found?.users["users_per_group"] ?? 0)} note="on one device" kind={found?.users["users_per_group"] ? "" : "bad"} />
      </Stats>
      {pool?.kv && (
        <Card title="The model being served" about={`${count(pool.kv.num_blocks)} blocks; what runs now holds ${percent(pool.load.kv_usage_fraction)}.`}>
          <Bar share={pool.load.kv_usage_fraction} label="KV cache in use" />
        </Card>
      )}
    </Frame>
  );
}
