/** 8: three ways of batching on the same arrivals. */
import type { JSX } from "preact";
import { card } from "../../data/cards";
import { count, percent, seconds, significant } from "../../format";
import { commandOf, type Flags, type Frames, simulate } from "../../tools";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Badge, Card, Legend, Note, Results, Slider, Spinner, Stat, Stats } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { rate: 5, spread: 80, slots: 8, gather: 50 };
const WAYS = ["static", "dynamic", "continuous"] as const;

function flagsOf(state: typeof DEFAULTS): Flags {
  return {
    model: "llama-3.1-8b",
    hardware: "h100",
    rate: state.rate,
    prompts: "200",
    answers: `lognormal:60:${((1.5 * state.spread) / 100).toFixed(2)}:1-1000`,
    "max-sequences": state.slots,
    "gather-s": state.gather / 1000,
    "num-requests": 300,
    "max-context": 8192,
    "max-waiting": 100_000,
    compare: true,
  };
}

interface Bar {
  slot: number;
  start: number;
  first: number;
  end: number;
  lost: number;
}

/** Requests laid into slots as they were served: a bar from its prompt's start to its last token. */
function slotsOf(frames: Frames, slots: number, isWhole: boolean): Bar[] {
  const free = new Array<number>(slots).fill(0);
  const bars: Bar[] = [];
  const served = frames.requests.filter((one) => one[1] >= 0).sort((a, b) => a[1] - b[1]);
  for (const [arrival, first, last] of served) {
    let slot = 0;
    for (let i = 1; i < slots; i++) if (free[i]! < free[slot]!) slot = i;
    const start = Math.max(arrival, free[slot]!, first - 0.05);
    bars.push({ slot, start, first, end: last, lost: last });
    free[slot] = last;
  }
  if (isWhole) {
    // Members of a batch begin together: a slot stays lost until the batch's last has ended.
    let group: Bar[] = [];
    const close = () => {
      const end = Math.max(...group.map((bar) => bar.end));
      for (const bar of group) bar.lost = end;
      group = [];
    };
    for (const bar of bars) {
      if (group.length && bar.first > group[0]!.first + 0.08) close();
      group.push(bar);
    }
    if (group.length) close();
  }
  return bars;
}

export function Batching(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const flags = flagsOf(state);
  const asked = useAsked(async (signal) => ({ slots: state.slots, ...(await simulate(flags, { lane: "batching", frames: true, signal })) }), flags, 300);
  const found = asked.value;
  return (
    <Frame
      card={card("batching")}
      state={state}
      command={commandOf("simulate", flags)}
      note={<Note kind="warn" title="Read this with care">Our static batching starts with whoever waits, pads nothing and holds nothing back, so it is better than the textbook's. Hatched is what a slot lost to its slowest neighbour; padding would come on top.</Note>}
      controls={
        <>
          <Slider label="Requests a second" value={state.rate} min={0.5} max={50} step={0.5} onChange={(rate) => set({ rate })} />
          <Slider label="Spread of answer lengths, %" value={state.spread} min={0} max={100} onChange={(spread) => set({ spread })} />
          <Slider label="Slots" value={state.slots} min={1} max={32} onChange={(slots) => set({ slots })} />
          <Slider label="Gather, ms (dynamic)" value={state.gather} min={0} max={1000} step={10} onChange={(gather) => set({ gather })} />
          {asked.busy && <Spinner text="simulating" />}
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Results of={asked}>{found &&
        WAYS.map((way) => {
          const outcome = found.report.results[way];
          const frames = found.frames?.[way];
          if (!outcome || !frames) return null;
          const isUnstable = !outcome.queue.stability.is_stable;
          const bars = slotsOf(frames, found.slots, way !== "continuous");
          const worked = bars.reduce((sum, bar) => sum + bar.end - bar.start, 0);
          const held = bars.reduce((sum, bar) => sum + bar.lost - bar.start, 0);
          const room = found.slots * Math.max(outcome.summary.duration_s, ...bars.map((bar) => bar.lost));
          return (
            <Card key={way} title={way} aside={isUnstable ? <Badge kind="bad">unstable: the queue grows</Badge> : <Badge kind="good">keeps up</Badge>}>
              <div class="stack">
                <Canvas height={found.slots * 9 + 44} label={`Slots over time, ${way}`} draw={(pen) => gantt(pen, bars, frames, found.slots, Math.min(found.report.workload.span_s, 20))} />
                <Stats>
                  <Stat label="tokens/s" name={`${way} tokens`} value={count(outcome.summary.output_tokens_per_s)} />
                  <Stat label="slot use" name={`${way} use`} value={percent(worked / room)} note="of all slots, all the time" />
                  <Stat label="lost to neighbours" name={`${way} lost`} value={percent((held - worked) / room)} note="held, but done" kind={held > worked * 1.01 ? "bad" : ""} />
                  <Stat label="TTFT p50" value={isUnstable ? "–" : seconds(outcome.summary.ttft.p50)} note={isUnstable ? "unstable" : undefined} />
                  <Stat label="E2E mean / p99" value={seconds(outcome.summary.e2e.mean)} note={`p99 ${seconds(outcome.summary.e2e.p99)}`} />
                  <Stat label="goodput" value={percent(outcome.summary.good_fraction)} kind={outcome.summary.good_fraction > 0.95 ? "good" : "bad"} />
                  <Stat label="mean queue" value={significant(outcome.replicas[0]!.mean_waiting)} />
                </Stats>
              </div>
            </Card>
          );
        })}</Results>
      <Legend items={[["prompt", "prompt"], ["decode", "a request"], ["hatched", "lost to a neighbour"], ["bad", "queue"]]} />
    </Frame>
  );
}

function gantt(pen: Pen, bars: Bar[], frames: Frames, slots: number, span: number): void {
  const { c, width } = pen;
  const x = (time: number) => (width * time) / span;
  for (let slot = 0; slot < slots; slot++) box(pen, 0, slot * 9, width, 7, c.sunken, 2);
  for (const bar of bars) {
    if (bar.start > span) continue;
    const y = bar.slot * 9;
    box(pen, x(bar.start), y, Math.max(x(bar.first) - x(bar.start), 1), 7, c.prompt, 1);
    box(pen, x(bar.first), y, Math.max(x(bar.end) - x(bar.first) - 0.6, 1), 7, c.decode, 1);
    if (bar.lost > bar.end) hatch(pen, x(bar.end), y, x(Math.min(bar.lost, span)) - x(bar.end), 7, c.idle);
  }
  const loads = frames.replicas[0]?.loads ?? [];
  const most = Math.max(...loads.filter((one) => one[0] <= span).map((one) => one[2]), 1);
  const base = slots * 9 + 26;
  for (const [time, , waiting] of loads) if (time <= span) box(pen, x(time), base - (18 * waiting) / most, 2, (18 * waiting) / most, c.bad, 0);
  words(pen, `queue, at most ${count(most)} until then`, 0, base + 10, c.muted, "left", 11);
  words(pen, seconds(span), width, base + 10, c.muted, "right", 11);
}
