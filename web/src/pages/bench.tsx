/** Benchmarks of this server, or of another that the operator allows: run beside it, drawn as they go, compared. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { about } from "../about";
import { told } from "../api";
import { count, percent, seconds, significant } from "../format";
import { benchmark, type BenchProgress, commandOf, type Flags } from "../tools";
import { Plot } from "../ui/draw";
import { useKept } from "../ui/hooks";
import { Badge, Bar, Button, Card, Command, Note, PageHead, Segments, Select, Slider, SourceBadge, Spinner, Table, TextField } from "../ui/kit";

const DEFAULTS = { mode: "concurrency", concurrency: 4, rate: 2, requests: 24, prompts: "64-128", answers: "32", target: "" };

interface Doubt {
  name: string;
  level: "invalid" | "warning" | "note";
  text: string;
}
/** What `penstock bench --json -` prints, as far as it is shown here. */
interface BenchReport {
  verdict: string;
  flags: Doubt[];
  knee: { rate: number | null; beyond: number | null } | null;
  runs: { headlines: Record<string, number>; summary: { outcomes: Record<string, number> } }[];
}
interface Run {
  label: string;
  flags: Flags;
  report: BenchReport;
}

const SLO = "ttft<500ms,tpot<50ms";

export function Bench(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [runs, setRuns] = useState<Run[]>([]);
  const [busy, setBusy] = useState("");
  const [fault, setFault] = useState("");
  const [key, setKey] = useState("");
  const [news, setNews] = useState<BenchProgress[]>([]);
  const abort = useRef<AbortController | null>(null);
  const targets = about.value?.bench_targets ?? [];
  const flags = (change: Partial<typeof DEFAULTS> = {}): Flags => {
    const now = { ...state, ...change };
    const load: Flags = now.mode === "rate" ? { rate: now.rate } : { concurrency: now.concurrency };
    return { ...load, "num-requests": now.requests, prompts: now.prompts, answers: now.answers };
  };
  const run = async (labels: [string, Flags][]) => {
    setFault("");
    abort.current = new AbortController();
    const { signal } = abort.current;
    const where = state.target ? ` of ${new URL(state.target).host}` : "";
    try {
      for (const [label, what] of labels) {
        setBusy(label);
        setNews([]);
        const onProgress = (one: BenchProgress) => setNews((before) => [...before, one].slice(-400));
        const report = await benchmark<BenchReport>(what, { target: state.target, key, signal, onProgress });
        setRuns((before) => [...before, { label: label + where, flags: what, report }]);
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
            {targets.length > 0 && <Select label="Server" value={state.target} options={[["", "this one"], ...targets.map((one) => [one, one] as const)]} onChange={(target) => set({ target })} />}
            {state.target && <TextField label="Its key, if it asks for one" value={key} onChange={setKey} />}
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
              <Button disabled={!!busy} title={`The highest rate that meets ${SLO}`} onClick={() => void run([["knee", { "find-knee": true, slo: SLO, "num-requests": state.requests, prompts: state.prompts, answers: state.answers }]])}>
                Find the knee
              </Button>
              {busy && (
                <Button kind="danger" onClick={() => abort.current?.abort()}>
                  Stop
                </Button>
              )}
              {runs.length > 0 && !busy && (
                <Button kind="quiet" onClick={() => setRuns([])}>
                  Clear
                </Button>
              )}
            </div>
            {busy && <Spinner text={`running ${busy}`} />}
            {targets.length === 0 && <p class="tiny faint">Other servers can be loaded from here once they are named: penstock serve bench-target=URL.</p>}
          </div>
        </Card>
        <div class="stack">
          {fault && <Note kind="bad">{fault}</Note>}
          {runs.length === 0 && !busy && <p class="empty">Run one, or sweep: the same requests at several loads, beside each other.</p>}
          {busy && <Going news={news} />}
          {runs.length > 0 && <Runs runs={runs} />}
          <Command text={commandOf("bench", flags(), state.target || location.origin)} />
        </div>
      </div>
    </div>
  );
}

/** A run as it goes: what has come, half second by half second. */
function Going({ news }: { news: BenchProgress[] }): JSX.Element {
  const rows = news.filter((one) => one.elapsed_s !== undefined);
  const last = rows.at(-1);
  if (!last) return <Card title="As it goes"><Spinner text={news.at(-1)?.stage ?? "starting"} /></Card>;
  // Runs of one benchmark follow each other, each on a clock of its own.
  const run = rows.filter((one) => one.stage === last.stage);
  const pace = run.map((one, index) => {
    const before = run[index - 1];
    return before ? (one.num_pieces! - before.num_pieces!) / Math.max(one.elapsed_s! - before.elapsed_s!, 1e-3) : one.num_pieces! / Math.max(one.elapsed_s!, 0.2);
  });
  return (
    <Card title="As it goes" about={`${last.stage}: ${count(last.num_ended!)} of ${count(last.num_total!)} answered, ${count(last.num_open!)} under way${last.num_failed ? `, ${count(last.num_failed)} failed` : ""}`}>
      <div class="stack">
        <Bar share={last.num_total ? last.num_ended! / last.num_total : 0} label="Requests answered" plain />
        <Plot
          label="Pieces a second and requests under way"
          height={200}
          x={run.map((one) => one.elapsed_s!)}
          xLabel="seconds"
          yLabel="pieces/s"
          y2Label="TTFT"
          format2={seconds}
          lines={[
            { label: "pieces/s", values: pace, colour: "decode" },
            { label: "under way", values: run.map((one) => one.num_open!), colour: "cached", dash: [4, 3] },
            { label: "TTFT p50 of the latest", values: run.map((one) => one.ttft_s ?? NaN), colour: "prompt", right: true },
          ]}
        />
      </div>
    </Card>
  );
}

function Runs({ runs }: { runs: Run[] }): JSX.Element {
  const of = (run: Run, name: string) => run.report.runs.at(-1)?.headlines[name] ?? NaN;
  const rate = (run: Run) => of(run, "output_tokens_per_s");
  const time = (run: Run, name: string) => (run.report.verdict === "client-bound" ? "–" : seconds(of(run, name) / 1000));
  const doubts = runs.flatMap((run) => run.report.flags.filter((flag) => flag.level !== "note").map((flag) => ({ label: run.label, ...flag })));
  return (
    <>
      <Card title="Runs" about="The first is the yardstick. A run whose figures are not the server's says why.">
        <div class="stack">
          <Table
            label="Benchmark runs"
            columns={[["load", ""], ["requests", "n"], ["tokens/s", "n"], ["", "n"], ["TTFT p50", "n"], ["TTFT p99", "n"], ["TPOT p50", "n"], ["E2E p99", "n"], ["goodput", "n"], ["verdict", ""]]}
            rows={runs.map((run, index) => [
              run.label,
              count(Object.values(run.report.runs.at(-1)?.summary.outcomes ?? {}).reduce((sum, one) => sum + one, 0)),
              <b key="t" data-figure="bench tokens">{significant(rate(run))}</b>,
              index ? <Badge key="b" kind={rate(run) >= rate(runs[0]!) ? "good" : "bad"}>{significant(rate(run) / rate(runs[0]!), 2)} ×</Badge> : "",
              time(run, "ttft_p50_ms"),
              time(run, "ttft_p99_ms"),
              time(run, "tpot_p50_ms"),
              time(run, "e2e_p99_ms"),
              percent(of(run, "good_percent") / 100),
              <Badge key="v" kind={run.report.verdict === "valid" ? "good" : "bad"}>{run.report.verdict}</Badge>,
            ])}
          />
          {runs.filter((run) => run.report.knee).map((run, index) => <Note key={index} kind="insight" title="Knee">{knee(run.report.knee!)}</Note>)}
          {doubts.slice(0, 6).map((one, index) => (
            <Note key={index} kind={one.level === "invalid" ? "bad" : "warn"}>
              {one.label}: {one.text}
            </Note>
          ))}
        </div>
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
              { label: "TTFT p50", values: runs.map((run) => of(run, "ttft_p50_ms") / 1000), colour: "prompt", right: true, points: true },
            ]}
          />
        </Card>
      )}
    </>
  );
}

function knee({ rate, beyond }: { rate: number | null; beyond: number | null }): string {
  if (rate === null) return beyond === null ? `Even one request at a time does not meet ${SLO}.` : `Not even ${significant(beyond)} requests/s meet ${SLO}.`;
  return beyond === null ? `At least ${significant(rate)} requests/s meet ${SLO}; more were not tried.` : `${significant(rate)} requests/s meet ${SLO}; ${significant(beyond)} do not.`;
}
