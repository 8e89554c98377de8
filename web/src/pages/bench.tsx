/** Benchmarks of this server, run beside it and compared. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post, told } from "../api";
import { count, percent, seconds, significant } from "../format";
import { commandOf, type Flags, LANE } from "../tools";
import { Plot } from "../ui/draw";
import { useKept } from "../ui/hooks";
import { Badge, Button, Card, Command, Note, PageHead, Segments, Slider, SourceBadge, Spinner, Table, TextField } from "../ui/kit";

const DEFAULTS = { mode: "concurrency", concurrency: 4, rate: 2, requests: 24, prompts: "64-128", answers: "32" };

type Plain = string | number | boolean | null | Plain[] | { [key: string]: Plain };
interface Run {
  label: string;
  flags: Flags;
  report: Plain;
}

/** The first value of that name anywhere in a report. */
export function dig(data: Plain | undefined, ...names: string[]): Plain | undefined {
  let at: Plain | undefined = data;
  for (const name of names) at = find(at, name);
  return at;
}

function find(data: Plain | undefined, name: string): Plain | undefined {
  if (!data || typeof data !== "object") return undefined;
  if (!Array.isArray(data) && name in data) return data[name];
  for (const value of Object.values(data)) {
    const found = find(value, name);
    if (found !== undefined) return found;
  }
  return undefined;
}
const number = (value: Plain | undefined): number => (typeof value === "number" ? value : NaN);

export function Bench(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [runs, setRuns] = useState<Run[]>([]);
  const [busy, setBusy] = useState("");
  const [fault, setFault] = useState("");
  const flags = (change: Partial<typeof DEFAULTS> = {}): Flags => {
    const now = { ...state, ...change };
    const load: Flags = now.mode === "rate" ? { rate: now.rate } : { concurrency: now.concurrency };
    return { ...load, "num-requests": now.requests, prompts: now.prompts, answers: now.answers };
  };
  const run = async (labels: [string, Flags][]) => {
    setFault("");
    try {
      for (const [label, what] of labels) {
        setBusy(label);
        const report = await post<Plain>("/app/v1/bench", { flags: what, lane: LANE });
        setRuns((before) => [...before, { label, flags: what, report }]);
      }
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy("");
  };
  const label = state.mode === "rate" ? `${state.rate} requests/s` : `${state.concurrency} at once`;
  const sweep = (): [string, Flags][] => (state.mode === "rate" ? [0.5, 1, 2, 4].map((factor) => [`${state.rate * factor} requests/s`, flags({ rate: state.rate * factor })]) : [1, 2, 4, 8].map((many) => [`${many} at once`, flags({ concurrency: many })]));
  return (
    <div class="page">
      <PageHead title="Bench" about="Latencies count from when a request was due; prompts are new to every cache; a run that the client could not keep up with says so instead of reporting.">
        <SourceBadge source="live" />
      </PageHead>
      <div class="split">
        <Card title="Load">
          <div class="fields">
            <Segments label="Kind of load" value={state.mode} options={[["concurrency", "Users at once"], ["rate", "Rate"]]} onChange={(mode) => set({ mode })} />
            {state.mode === "rate" ? <Slider label="Requests a second" value={state.rate} min={0.1} max={50} step={0.1} onChange={(rate) => set({ rate })} /> : <Slider label="Users who ask again once answered" value={state.concurrency} min={1} max={64} onChange={(concurrency) => set({ concurrency })} />}
            <Slider label="Requests" value={state.requests} min={4} max={400} onChange={(requests) => set({ requests })} />
            <TextField label="Prompt tokens" value={state.prompts} onChange={(prompts) => set({ prompts })} />
            <TextField label="Answer tokens" value={state.answers} onChange={(answers) => set({ answers })} />
            <div class="row">
              <Button kind="primary" disabled={!!busy} onClick={() => void run([[label, flags()]])}>
                Run
              </Button>
              <Button disabled={!!busy} onClick={() => void run(sweep())}>
                Sweep
              </Button>
              {runs.length > 0 && (
                <Button kind="quiet" onClick={() => setRuns([])}>
                  Clear
                </Button>
              )}
            </div>
            {busy && <Spinner text={`running ${busy}`} />}
          </div>
        </Card>
        <div class="stack">
          {fault && <Note kind="bad">{fault}</Note>}
          {runs.length === 0 && !busy && <p class="empty">Run one, or sweep: the same requests at several loads, beside each other.</p>}
          {runs.length > 0 && <Runs runs={runs} />}
          <Command text={commandOf("bench", flags(), location.origin)} />
        </div>
      </div>
    </div>
  );
}

function Runs({ runs }: { runs: Run[] }): JSX.Element {
  const ttft = (run: Run) => number(dig(run.report, "ttft", "p50"));
  const rate = (run: Run) => number(dig(run.report, "output_tokens_per_s"));
  return (
    <>
      <Card title="Runs" about="The first is the yardstick.">
        <Table
          label="Benchmark runs"
          columns={[["load", ""], ["tokens/s", "n"], ["TTFT p50", "n"], ["TTFT p99", "n"], ["TPOT p50", "n"], ["E2E p99", "n"], ["goodput", "n"], ["", ""]]}
          rows={runs.map((run, index) => [
            run.label,
            <b key="t" data-figure="bench tokens">{significant(rate(run))}</b>,
            seconds(ttft(run)),
            seconds(number(dig(run.report, "ttft", "p99"))),
            seconds(number(dig(run.report, "tpot", "p50"))),
            seconds(number(dig(run.report, "e2e", "p99"))),
            percent(number(dig(run.report, "good_fraction"))),
            index ? <Badge key="b" kind={rate(run) >= rate(runs[0]!) ? "good" : "bad"}>{significant(rate(run) / rate(runs[0]!), 2)} ×</Badge> : count(number(dig(run.report, "num_requests"))) + " requests",
          ])}
        />
      </Card>
      {runs.length > 1 && (
        <Card title="Throughput against latency">
          <Plot
            label="Throughput against TTFT"
            x={runs.map((_, index) => index + 1)}
            xLabel="run"
            yLabel="tokens/s"
            y2Label="TTFT p50"
            format2={seconds}
            lines={[
              { label: "tokens/s", values: runs.map(rate), colour: "decode", points: true },
              { label: "TTFT p50", values: runs.map(ttft), colour: "prompt", right: true, points: true },
            ]}
          />
        </Card>
      )}
    </>
  );
}
