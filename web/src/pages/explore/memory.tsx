/** 12: does it fit? */
import type { JSX } from "preact";
import { about } from "../../about";
import { card } from "../../data/cards";
import { bytes, count } from "../../format";
import { calculate } from "../../tools";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Badge, Card, Legend, Note, Select, Slider, Stat, Stats, Table } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { model: "llama-3-70b", hardware: "h100-sxm", weights: "bf16", kv: "bf16", context: 4096, users: 1, devices: 1 };

export function MemoryCard(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const common = { model: state.model, weights: state.weights, kv: state.kv, context: state.context };
  const asked = useAsked(
    async (signal) => {
      const [memory, users] = await Promise.all([
        calculate("memory", { ...common, hardware: state.hardware, batch: state.users }, signal),
        calculate("users", { ...common, hardware: state.hardware, devices: state.devices }, signal),
      ]);
      return { memory, users };
    },
    state,
  );
  const table = useAsked(
    (signal) => Promise.all((about.value?.devices ?? []).slice(0, 14).map(async (hardware) => [hardware, (await calculate("memory", { ...common, hardware, batch: state.users }, signal)).values] as const)),
    [common, state.users, about.value?.devices.length],
  );
  const values = asked.value?.memory.values;
  const textbook = asked.value?.memory.textbook;
  const memory = Number(asked.value?.memory.quantities.find((one) => one.key === "memory")?.value ?? 0) * state.devices;
  const total = values?.["total_bytes"] ?? 0;
  const fits = total > 0 && total <= memory;
  const draw = (pen: Pen) => {
    const { c, width } = pen;
    const most = Math.max(memory, total) * 1.05 || 1;
    const x = (value: number) => (width * value) / most;
    box(pen, 0, 8, x(memory), 40, c.sunken, 6);
    let at = 0;
    for (const [name, colour] of [["weight_bytes", c.cached], ["kv_bytes", c.decode], ["activation_bytes", c.prompt]] as const) {
      const part = values?.[name] ?? 0;
      box(pen, x(at), 8, x(part), 40, colour, 3);
      at += part;
    }
    if (total > memory) box(pen, x(memory), 4, 3, 48, c.bad, 0);
    words(pen, `${count(state.devices)} × ${state.hardware}: ${bytes(memory)}`, x(memory), 66, c.text, x(memory) > 200 ? "right" : "left", 12);
  };
  return (
    <Frame
      card={card("memory")}
      state={state}
      command={`penstock calc memory --model ${state.model} --hardware ${state.hardware} --weights ${state.weights} --context ${state.context} --batch ${state.users} --kv ${state.kv}`}
      controls={
        <>
          <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
          <Select label="Weights" value={state.weights} options={["fp32", "bf16", "fp8", "int8", "int4"]} onChange={(weights) => set({ weights })} />
          <Select label="Device" value={state.hardware} options={about.value?.devices ?? [state.hardware]} onChange={(hardware) => set({ hardware })} />
          <Slider label="Devices" value={state.devices} min={1} max={16} onChange={(devices) => set({ devices })} />
          <Slider label="Context, tokens" value={state.context} min={128} max={131_072} log onChange={(context) => set({ context })} />
          <Slider label="Users at once" value={state.users} min={1} max={1000} log onChange={(users) => set({ users })} />
          <Select label="Keys and values" value={state.kv} options={[["bf16", "16 bits"], ["int8", "8 bits"]]} onChange={(kv) => set({ kv })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Card title="Memory" aside={<><Badge kind={fits ? "good" : "bad"}>{fits ? "it fits" : "it does not fit"}</Badge><Legend items={[["cached", "weights"], ["decode", "KV"], ["prompt", "activations"]]} /></>}>
        <Canvas height={78} label={`${bytes(total)} of ${bytes(memory)}`} draw={draw} />
        <Stats>
          <Stat label="weights" value={bytes(values?.["weight_bytes"] ?? 0)} />
          <Stat label="KV" value={bytes(values?.["kv_bytes"] ?? 0)} />
          <Stat label="in all" name="memory-total" value={bytes(total)} note={`textbook ${bytes(textbook?.["total_bytes"] ?? 0)}`} kind={fits ? "good" : "bad"} />
          <Stat label="devices it takes" value={count(values?.["devices_by_layout"] ?? NaN)} note={`${count(values?.["devices_by_size"] ?? NaN)} by size alone`} />
          <Stat label="users by memory" value={count(asked.value?.users.values["users_per_group"] ?? 0)} note={`on ${state.devices} device${state.devices > 1 ? "s" : ""}`} />
          <Stat label="users by compute" value={count(asked.value?.users.values["compute_ceiling"] ?? 0)} note="where decode turns compute-bound" />
        </Stats>
      </Card>
      <Card title="On other devices">
        {table.value && <Table label="Devices" columns={[["device", ""], ["fits one", ""], ["by size", "n"], ["by layout", "n"]]} rows={table.value.map(([name, one]) => [name, one["fits"] ? <Badge kind="good">yes</Badge> : <Badge kind="bad">no</Badge>, count(one["devices_by_size"] ?? NaN), one["devices_by_layout"] === null ? "–" : count(one["devices_by_layout"]!)])} />}
      </Card>
    </Frame>
  );
}
