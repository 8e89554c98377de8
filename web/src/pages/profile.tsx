/** Where a step's time goes: its timeline, its parts and kernels beside what the machine reaches. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { about } from "../about";
import { post, told, withModel } from "../api";
import { bytes, percent, seconds, significant } from "../format";
import { type Colours } from "../theme";
import { commandOf } from "../tools";
import { box, Canvas, type Pen, words } from "../ui/draw";
import { useKept } from "../ui/hooks";
import { Bar, Button, Card, Command, Note, PageHead, Slider, SourceBadge, Spinner, Stat, Stats, Table } from "../ui/kit";

interface Part {
  name: string;
  kind: string;
  seconds: number;
  share: number;
  num_launches: number;
  bytes_per_s: number | null;
  flops_per_s: number | null;
  floor_s: number | null;
}
/** [name, kind, start, length, layer] */
type Span = [string, string, number, number, number];

/** What `penstock profile step --json` prints, as far as it is shown here. */
interface StepProfile {
  model: string;
  device: string;
  num_steps: number;
  step_s: number;
  device_s: number;
  host_s: number;
  floor_s: number;
  mfu: number;
  mbu: number;
  shape: { batch: number; context: number; prompt: number };
  reaches: { bytes_per_s: number; flops_per_s: number; number_format: string };
  parts: Part[];
  kernels: Part[];
  timeline: Span[];
}

const DEFAULTS = { batch: 8, context: 256, prompt: 0 };
const HUES: readonly (keyof Colours)[] = ["decode", "prompt", "cached", "draft", "idle", "bad"];
const MOST_KERNELS = 40;

export function Profile(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [found, setFound] = useState<StepProfile | null>(null);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const run = async () => {
    setBusy(true);
    setFault("");
    try {
      setFound(await post<StepProfile>(withModel("/app/v1/profile"), { flags: { ...state } }));
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy(false);
  };
  const open = async (file: File | undefined) => {
    if (!file) return;
    try {
      const data = JSON.parse(await file.text()) as StepProfile;
      if (!Array.isArray(data.timeline) || !Array.isArray(data.parts)) throw new Error("it was not written by penstock profile step --json");
      setFound(data);
      setFault("");
    } catch (problem) {
      setFault(`${file.name} cannot be shown: ${told(problem)}`);
    }
  };
  const longest = Math.max(Math.min(about.value?.max_context ?? 2048, 16384) - 100, 64);
  return (
    <div class="page">
      <PageHead title="Profile" about="One step of this model, watched part by part: on a CPU by marks of the native library, on a GPU by the driver's record of kernels.">
        <SourceBadge source="live" />
      </PageHead>
      <div class="split">
        <Card title="Step">
          <div class="fields">
            <Slider label="Sequences that generate" value={state.batch} min={1} max={Math.min(about.value?.max_sequences ?? 64, 64)} onChange={(batch) => set({ batch })} />
            <Slider label="Tokens that each has before it" value={state.context} min={1} max={longest} onChange={(context) => set({ context })} />
            <Slider label="Tokens of a prompt beside them" value={state.prompt} min={0} max={1024} step={16} onChange={(prompt) => set({ prompt })} />
            <div class="row">
              <Button kind="primary" disabled={busy} onClick={() => void run()}>
                Watch some steps
              </Button>
              {found && (
                <Button kind="quiet" title="For chrome://tracing and Perfetto" onClick={() => save(found)}>
                  Save the timeline
                </Button>
              )}
            </div>
            <label class="small muted">
              Or open a file of <code>penstock profile step --json</code>:{" "}
              <input type="file" accept=".json,application/json" onChange={(event) => void open(event.currentTarget.files?.[0])} />
            </label>
            {busy && <Spinner text="a second copy of the model is loaded and watched" />}
          </div>
        </Card>
        <div class="stack">
          {fault && <Note kind="bad">{fault}</Note>}
          {!found && !busy && !fault && <p class="empty">Watch some steps of a shape of your choice, while this server has nothing else to do.</p>}
          {found && <Found found={found} />}
          <Command text={commandOf("profile step", { ...state, json: true })} />
        </div>
      </div>
    </div>
  );
}

function Found({ found }: { found: StepProfile }): JSX.Element {
  const { reaches, shape } = found;
  const kinds = [...new Set(found.parts.map((part) => part.kind))];
  return (
    <>
      <Card title={`${found.model}: ${shape.batch} sequences at ${shape.context} tokens${shape.prompt ? `, a prompt of ${shape.prompt} beside them` : ""}`} about={`${found.device}; the mean of ${found.num_steps} steps. Reached: ${bytes(reaches.bytes_per_s)}/s, ${significant(reaches.flops_per_s / 1e12)} TFLOP/s in ${reaches.number_format}.`}>
        <Stats>
          <Stat label="step" name="step" value={seconds(found.step_s)} note={`device ${seconds(found.device_s)}, host ${seconds(found.host_s)}`} />
          <Stat label="roofline" name="roofline" value={seconds(found.floor_s)} note={`${percent(found.floor_s / Math.max(found.step_s, 1e-12))} of the step`} title="What the step takes at the limits of this machine" />
          <Stat label="MBU" name="mbu" value={percent(found.mbu)} note="of the bytes it reads a second" />
          <Stat label="MFU" name="mfu" value={percent(found.mfu)} note="of the operations it computes" />
        </Stats>
      </Card>
      <Card title="Timeline of one step">
        <Timeline spans={found.timeline} kinds={kinds} />
      </Card>
      <Card title="Parts">
        <Table label="Parts of a step" columns={[["Part"], ["Time", "n"], ["Share"], ["Launches", "n"], ["GB/s", "n"], ["TFLOP/s", "n"], ["Roofline", "n"]]} rows={found.parts.map((part) => [part.name, seconds(part.seconds), <Bar share={part.share} label={percent(part.share)} />, significant(part.num_launches), rate(part.bytes_per_s, 1e9), rate(part.flops_per_s, 1e12), part.floor_s === null ? "" : seconds(part.floor_s)])} />
      </Card>
      {found.kernels.length > found.parts.length && (
        <Card title="Kernels">
          <Table label="Kernels of a step" columns={[["Kernel"], ["Part"], ["Time", "n"], ["Share", "n"], ["Launches", "n"]]} rows={found.kernels.slice(0, MOST_KERNELS).map((one) => [one.name.slice(0, 90), one.kind, seconds(one.seconds), percent(one.share), significant(one.num_launches)])} />
        </Card>
      )}
    </>
  );
}

const rate = (value: number | null, scale: number): string => (value === null ? "" : significant(value / scale));

function Timeline({ spans, kinds }: { spans: Span[]; kinds: string[] }): JSX.Element {
  const end = Math.max(...spans.map(([, , start, length]) => start + length), 1e-9);
  const left = 90;
  const draw = (pen: Pen) => {
    const { c, width } = pen;
    kinds.forEach((kind, row) => {
      words(pen, kind, 0, row * 24 + 11, c.text, "left", 12);
      box(pen, left, row * 24 + 2, width - left, 18, c.sunken, 2);
    });
    for (const [, kind, start, length] of spans) {
      const row = kinds.indexOf(kind);
      box(pen, left + ((width - left) * start) / end, row * 24 + 2, Math.max(((width - left) * length) / end, 0.6), 18, c[HUES[row % HUES.length]!], 0);
    }
    for (let i = 0; i <= 4; i++) words(pen, seconds((end * i) / 4), left + ((width - left) * i) / 4, kinds.length * 24 + 10, c.muted, i === 4 ? "right" : i ? "center" : "left", 11);
  };
  const tip = (x: number, y: number, width: number): string | null => {
    const at = ((x - left) / (width - left)) * end;
    const kind = kinds[Math.floor(y / 24)];
    const span = spans.find(([, own, start, length]) => own === kind && start <= at && at <= start + length);
    return span ? `${span[0]}${span[4] >= 0 ? `, layer ${span[4]}` : ""}: ${seconds(span[3])}` : null;
  };
  return <Canvas height={kinds.length * 24 + 22} label={`Timeline of a step of ${seconds(end)}: ${kinds.join(", ")}`} draw={draw} stamp={spans} tip={tip} />;
}

function save(found: StepProfile): void {
  const events = found.timeline.map(([name, cat, start, length, layer]) => ({ ph: "X", pid: 1, tid: 1, name, cat, ts: start * 1e6, dur: length * 1e6, args: layer >= 0 ? { layer } : {} }));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ traceEvents: events, displayTimeUnit: "ns" })], { type: "application/json" }));
  link.download = "step.trace.json";
  link.click();
  URL.revokeObjectURL(link.href);
}
