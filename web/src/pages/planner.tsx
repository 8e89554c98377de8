/** The planner: what to buy and how to launch it, as a form. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { about } from "../about";
import { post } from "../api";
import { count, money, percent, seconds, significant } from "../format";
import { useLive, useStream } from "../live";
import { commandOf, type Flags, LANE } from "../tools";
import { type Dot, Frontier, present } from "../ui/frontier";
import { useAsked, useKept } from "../ui/hooks";
import { Badge, Card, Command, Note, PageHead, Results, Select, Slider, SourceBadge, Spinner, Stat, Stats, Table, TextField } from "../ui/kit";

const DEFAULTS = { model: "llama-3.1-8b", hardware: "h100", price: "", rate: 8, workload: "chat", slo: "ttft<500ms,tpot<50ms", weights: "bf16,fp8", max_devices: 2 };

type Plain = string | number | boolean | null | Plain[] | { [key: string]: Plain };
type Data = Record<string, Plain>;

const object = (value: Plain | undefined): Data => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
const list = (value: Plain | undefined): Data[] => (Array.isArray(value) ? value.map(object) : []);

export function Planner(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const flags: Flags = { hardware: state.hardware, rate: state.rate, workload: state.workload, slo: state.slo, weights: state.weights, "max-devices": state.max_devices, ...(state.price ? { price: state.price } : {}) };
  const asked = useAsked((signal) => post<Data>("/app/v1/plan", { flags: { model: state.model, ...flags }, lane: LANE }, signal), state, 500);
  return (
    <div class="page">
      <PageHead title="Planner" about="Layouts, precisions and limits are searched on the simulator, which runs the engine's own scheduler. Nothing is downloaded.">
        <SourceBadge source="simulated" />
        {asked.busy && <Spinner text="searching" />}
      </PageHead>
      <div class="split">
        <Card title="What is asked">
          <div class="fields">
            <Select label="Model" value={state.model} options={about.value?.models ?? [state.model]} onChange={(model) => set({ model })} />
            <TextField label="Devices to choose from" value={state.hardware} hint="h100,l40s" onChange={(hardware) => set({ hardware })} />
            <TextField label="Prices, $ an hour" value={state.price} hint="h100=2.5 (otherwise list prices)" onChange={(price) => set({ price })} />
            <Slider label="Requests a second" value={state.rate} min={0.5} max={500} step={0.5} log onChange={(rate) => set({ rate })} />
            <Slider label="… or people, each asking once a minute" value={Math.round(state.rate * 60)} min={30} max={30_000} log onChange={(users) => set({ rate: Number((users / 60).toFixed(2)) })} />
            <Select label="Kind of load" value={state.workload} options={["chat", "rag", "agent", "code", "summary", "reasoning"]} onChange={(workload) => set({ workload })} />
            <TextField label="SLO" value={state.slo} onChange={(slo) => set({ slo })} />
            <TextField label="Weights to consider" value={state.weights} onChange={(weights) => set({ weights })} />
            <Slider label="Most devices a replica" value={state.max_devices} min={1} max={8} onChange={(max_devices) => set({ max_devices })} />
          </div>
        </Card>
        <div class="stack">
          {asked.fault && <Note kind="bad">{asked.fault}</Note>}
          {!asked.value && asked.busy && <p class="empty">The first plan is being searched; it takes some seconds.</p>}
          <Results of={asked}>{asked.value && <Plan data={asked.value} />}</Results>
          <Command text={commandOf("plan", flags, state.model)} />
        </div>
      </div>
    </div>
  );
}

function Plan({ data }: { data: Data }): JSX.Element {
  const chosen = object(data["chosen"]);
  const options = list(data["options"]);
  const load = object(data["at_load"]);
  const constraint = data["constraint"];
  const host = object(data["self_host"]);
  return (
    <>
      {Object.keys(chosen).length === 0 ? (
        <Note kind="warn" title="Nothing meets it">
          No layout within these bounds meets the SLO at that rate. Allow more devices, other precisions or a looser SLO.
        </Note>
      ) : (
        <Best option={chosen} load={load} />
      )}
      {constraint && <Card title="What limits it"><p>{String(object(constraint)["words"] ?? "")}</p>{object(constraint)["remedy"] !== null && <p class="muted small">Remedy: <code>{String(object(constraint)["remedy"])}</code>{typeof object(constraint)["gain"] === "number" && `, ${percent(object(constraint)["gain"] as number)} more`}</p>}</Card>}
      {options.length > 0 && (
        <Card title="Ranked" about="Each the best limits found for its layout and precision.">
          <Table
            label="Candidates"
            columns={[["configuration", ""], ["replicas", "n"], ["devices", "n"], ["requests/s a replica", "n"], ["tokens/s a device", "n"], ["requests inside", "n"], ["$ an hour", "n"], ["runs today", ""]]}
            rows={options.slice(0, 12).map((option) => {
              const capacity = object(option["capacity"]);
              return [String(option["name"]), ...[option["num_replicas"], option["num_devices"], capacity["requests_per_s"], capacity["tokens_per_s_per_device"], capacity["users"]].map((value) => format("", value ?? null)), format("dollars", option["dollars_per_hour"] ?? null), String(option["runs_today"] ?? "")];
            })}
          />
        </Card>
      )}
      {list(data["rejected"]).length > 0 && (
        <Card title="Left out, and why">
          <Table label="Left out" columns={[["configuration", ""], ["why", ""]]} rows={list(data["rejected"]).slice(0, 12).map((one) => [String(one["name"]), String(one["reason"])])} />
        </Card>
      )}
      {list(data["pareto"]).length > 0 && <Pareto data={data} />}
      {list(data["what_ifs"]).length > 0 && (
        <Card title="What if">
          <Ranked rows={list(data["what_ifs"])} />
        </Card>
      )}
      {Object.keys(host).length > 0 && (
        <Card title="A month, and an API beside it">
          <Leaves data={host} />
        </Card>
      )}
      <Card title="How far to trust it">
        <Leaves data={object(data["trust"])} />
      </Card>
    </>
  );
}

/** Loads that were simulated and met the SLO, without those that another beats in both respects. */
function Pareto({ data }: { data: Data }): JSX.Element {
  useEffect(useStream, []);
  const now = useLive(1);
  const points = list(data["pareto"]).map((one) => ({ user: Number(one["tokens_per_s_per_user"]), all: Number(one["tokens_per_s_per_device"]), text: `${String(one["name"])}\nat ${significant(Number(one["rate"]))} requests/s a copy` }));
  const limits = list(data["options"]).map((one) => ({ user: Number(object(one["capacity"])["tokens_per_s_per_user"]), all: Number(object(one["capacity"])["tokens_per_s_per_device"]), text: `${String(one["name"])}\nat its capacity` }));
  const [chosen, load] = [object(data["chosen"]), object(data["at_load"])];
  const made = Number(load["rate"] ?? NaN) * Number(object(data["demand"])["mean_answer"] ?? NaN);
  const asked: Dot = { user: 1 / Number(object(load["tpot"])["p50"] ?? NaN), all: made / Number(chosen["num_devices"] ?? NaN), label: "the plan at this load", text: String(chosen["name"] ?? ""), colour: "accent", shape: "diamond" };
  return (
    <Card title="Frontier" about="Tokens a second of a device against those of each user, within the SLO.">
      <Frontier label="Pareto front" allLabel="tokens/s a device" curves={[{ label: "best loads of all configurations", colour: "decode", points }, { label: "each configuration at its capacity", colour: "cached", points: limits, isScattered: true }]} dots={[asked, ...present(now)]} />
    </Card>
  );
}

function Best({ option, load }: { option: Data; load: Data }): JSX.Element {
  const capacity = object(option["capacity"]);
  const price = object(option["dollars_per_million"]);
  const launch = option["launch"];
  const lines = Array.isArray(launch) ? launch.map(String) : [String(launch ?? "")];
  const at = (name: string) => object(load[name]);
  return (
    <Card title="Best of all" about={String(option["name"])} aside={
        <>
          {option["runs_today"] !== "yes" && <Badge kind="warn">{String(option["runs_today"])}</Badge>}
          <Badge kind="good">meets the SLO</Badge>
        </>
      }>
      <div class="stack">
        <Stats>
          <Stat label="replicas" value={format("", option["num_replicas"] ?? null)} note={`${format("", option["num_devices"] ?? null)} ${option["num_devices"] === 1 ? "device" : "devices"}`} />
          <Stat label="carries" value={format("", capacity["requests_per_s"] ?? null)} unit="requests/s each" note={`${format("", capacity["users"] ?? null)} requests inside at once`} />
          <Stat label="tokens/s a device" value={format("", capacity["tokens_per_s_per_device"] ?? null)} />
          <Stat label="TTFT p50 at this load" value={seconds(at("ttft")["p50"] as number)} note={`p99 ${seconds(at("ttft")["p99"] as number)}`} />
          <Stat label="TPOT p50" value={seconds(at("tpot")["p50"] as number)} note={`p99 ${seconds(at("tpot")["p99"] as number)}`} />
          <Stat label="ρ" value={format("", load["rho"] ?? null)} />
          <Stat label="an hour" value={format("dollars", option["dollars_per_hour"] ?? null)} />
          {Object.entries(price).slice(0, 2).map(([name, value]) => (
            <Stat key={name} label={`$ a million, ${name.replaceAll("_", " ")}`} value={format("dollars", value)} />
          ))}
        </Stats>
        {lines.filter(Boolean).map((line) => (
          <Command key={line} text={line} />
        ))}
      </div>
    </Card>
  );
}

function format(name: string, value: Plain): string {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return value === null ? "–" : typeof value === "object" ? "" : String(value);
  if (/_s$/.test(name) && !/per_s$/.test(name)) return seconds(value);
  if (/fraction|share|attainment|utilis/.test(name)) return percent(value);
  if (/dollar|price|cost|hour|month|million/.test(name)) return money(value);
  return Number.isInteger(value) ? count(value) : significant(value);
}

/** Characters from which a value is read, not looked at. */
const SENTENCE = 16;

function Leaves({ data }: { data: Data }): JSX.Element {
  const plain = Object.entries(data).filter(([, value]) => typeof value !== "object" || value === null);
  const nested = Object.entries(data).filter(([, value]) => value !== null && typeof value === "object" && !Array.isArray(value));
  const commands = plain.filter(([name, value]) => typeof value === "string" && (name.includes("command") || String(value).startsWith("penstock ")));
  return (
    <div class="stack">
      <Stats>
        {plain
          .filter(([name]) => !commands.some(([other]) => other === name))
          .slice(0, 16)
          .map(([name, value]) => (
            <Stat key={name} label={name.replace(/^num_/, "").replaceAll("_", " ")} value={String(value).length > SENTENCE ? <small>{format(name, value)}</small> : <span class="small-value">{format(name, value)}</span>} />
          ))}
      </Stats>
      {commands.map(([name, value]) => (
        <Command key={name} text={String(value)} />
      ))}
      {nested.slice(0, 6).map(([name, value]) => (
        <details key={name} class="more">
          <summary>{name.replaceAll("_", " ")}</summary>
          <Leaves data={object(value)} />
        </details>
      ))}
    </div>
  );
}

function Ranked({ rows }: { rows: Data[] }): JSX.Element {
  const names = [...new Set(rows.flatMap((row) => Object.entries(row).filter(([, value]) => typeof value !== "object").map(([name]) => name)))].filter((name) => !/command/.test(name)).slice(0, 9);
  return <Table label="Candidates" columns={names.map((name) => [name.replaceAll("_", " "), typeof rows[0]?.[name] === "number" ? "n" : ""] as const)} rows={rows.slice(0, 12).map((row) => names.map((name) => format(name, row[name] ?? null)))} />;
}
