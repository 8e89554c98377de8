/** The cockpit: every knob of a deployment, answered by the engine's own scheduler in virtual time. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { told } from "../../api";
import { BASE, type Experiment, EXPERIMENTS } from "../../data/experiments";
import { count, money, percent, seconds, significant } from "../../format";
import { go, query } from "../../router";
import { commandOf, film, type Flags, isUnstable, only, simulate, type Simulated } from "../../tools";
import { Plot } from "../../ui/draw";
import { useFrames } from "../../ui/hooks";
import { Badge, Button, Card, Command, Legend, Note, PageHead, Segments, Slider, SourceBadge, Spinner, Stat, Stats, Table } from "../../ui/kit";
import { costOf, FigureTable, rhoOf } from "./figures";
import { CockpitFrontier } from "./frontier";
import { cleaned, Knobs } from "./knobs";
import { loadAt, Stage } from "./stage";

interface Side {
  flags: Flags;
  run: Simulated | null;
  /** What `run` was run with. */
  ran: Flags;
  busy: boolean;
  progress: number;
  fault: string;
}
const side = (flags: Flags): Side => ({ flags, run: null, ran: flags, busy: false, progress: 0, fault: "" });
/** What is shown of it is of other settings than those that are asked for. */
const isStale = (one: Side | null): boolean => one !== null && (one.busy || (!one.fault && JSON.stringify(one.flags) !== JSON.stringify(one.ran)));

function fromAddress(): Flags {
  const flags: Flags = {};
  for (const [name, text] of query.peek()) {
    if (name === "experiment") continue;
    flags[name] = text === "true" ? true : text === "false" ? false : text !== "" && Number.isFinite(Number(text)) && name !== "prompts" && name !== "answers" ? Number(text) : text;
  }
  return Object.keys(flags).length ? flags : BASE;
}

function toAddress(flags: Flags): void {
  const search = new URLSearchParams(Object.entries(flags).map(([name, value]) => [name, String(value)]));
  history.replaceState(null, "", `#/cockpit?${search.toString()}`);
}

export function Cockpit(): JSX.Element {
  const [a, setA] = useState<Side>(() => side(fromAddress()));
  const [b, setB] = useState<Side | null>(null);
  const [shown, setShown] = useState<"a" | "b">("a");
  const [experiment, setExperiment] = useState<Experiment | null>(null);
  const [price, setPrice] = useState(0);

  useRun("a", a.flags, (change) => setA((before) => ({ ...before, ...change })));
  useRun("b", b?.flags ?? null, (change) => setB((before) => before && { ...before, ...change }));
  const latest = (b ?? a).flags;
  useEffect(() => toAddress(latest), [latest]);

  const start = (chosen: Experiment) => {
    setExperiment(chosen);
    // A is what was before, B what the experiment changes: "B against A" is its gain.
    const { against } = chosen.runs.length === 1 ? chosen : { against: undefined };
    setA((before) => ({ ...before, flags: against ?? chosen.runs[0]!.flags }));
    setB(against ? side(chosen.runs[0]!.flags) : null);
    setShown(against ? "b" : "a");
  };
  const stale = isStale(a) || isStale(b);
  const edited = shown === "a" ? a : b!;
  const change = (flags: Flags) => (shown === "a" ? setA((before) => ({ ...before, flags })) : setB((before) => before && { ...before, flags }));
  return (
    <div class="page">
      <PageHead title="Cockpit" about="A production inference server you can fly: turn a knob, and the real scheduler serves the same arrivals again in virtual time.">
        <SourceBadge source="simulated" />
      </PageHead>
      <section aria-label="Guided experiments" class="strip-cards">
        {EXPERIMENTS.map((one) => (
          <button key={one.number} type="button" class="tile" aria-pressed={experiment === one} onClick={() => start(one)}>
            <span class="num">Experiment {one.number}</span>
            <h3>{one.name}</h3>
            <span class="q">{one.question}</span>
          </button>
        ))}
      </section>
      {experiment && experiment.runs.length === 1 && <Verdict experiment={experiment} runs={b ? [b.run, a.run] : [a.run]} busy={stale} />}
      {experiment && experiment.runs.length > 1 && (
        <Sweep key={experiment.number} experiment={experiment} onShow={(flags) => setA((before) => ({ ...before, flags }))} />
      )}
      <div class="split">
        <Card
          title="Knobs"
          aside={
            b ? (
              <Segments label="Which configuration" value={shown} options={[["a", "A"], ["b", "B"]]} onChange={setShown} />
            ) : (
              <Button kind="s" onClick={() => { setB(side(a.flags)); setShown("b"); }}>
                Compare
              </Button>
            )
          }
        >
          <Knobs flags={edited.flags} onChange={change} />
          {b && (
            <div class="row knob-foot">
              <Button kind="quiet s" onClick={() => { setB(null); setShown("a"); }}>
                Drop B
              </Button>
            </div>
          )}
        </Card>
        <div class="stack" aria-busy={stale}>
          {stale && (
            <Note title="Simulating">
              <Spinner text={edited.progress > 0 ? `simulated ${seconds(edited.progress)}` : "the new settings"} /> {a.run && "What stands below, greyed, is of the run before."}
            </Note>
          )}
          <div class={stale ? "stack stale" : "stack"}>
          <Playback a={a} b={b} main={edited} price={price} />
          {a.run && (
            <Card title="Figures" about={b ? "A is what was before, B what is tried. Same seed, same arrivals: what differs comes from the configuration." : "Same seed, same arrivals: what differs comes from the configuration."} aside={<Bound side={edited} />}>
              <div class="stack">
                <FigureTable sides={[{ run: a.run, flags: a.ran }, ...(b?.run ? [{ run: b.run, flags: b.ran }] : [])]} price={price} />
                <Slider label="Price of a device, $ an hour (0: list price)" value={price} min={0} max={20} step={0.1} onChange={setPrice} />
              </div>
            </Card>
          )}
          {edited.run && <Curves side={edited} />}
          {a.run && <CockpitFrontier sides={[{ run: a.run, flags: a.ran }, ...(b?.run ? [{ run: b.run, flags: b.ran }] : [])]} />}
          </div>
          <Card title="The same as a command">
            <div class="stack">
              <Command text={commandOf("simulate", cleaned(edited.flags))} />
              <div class="row">
                <Button onClick={() => go(`planner?model=${String(edited.flags["model"] ?? "llama-3.1-8b")}&rate=${String(edited.flags["rate"] ?? 8)}&hardware=${String(edited.flags["hardware"] ?? "h100")}`)}>Plan this</Button>
                <Button onClick={() => go(liveOf(edited.flags))}>Try it live</Button>
              </div>
            </div>
          </Card>
        </div>
      </div>
    </div>
  );
}

/** The same load, as far as the bench page has it, on the model that is served. */
function liveOf(flags: Flags): string {
  const load = new URLSearchParams({ mode: "rate", rate: String(Math.min(Math.max(Number(flags["rate"] ?? 2), 0.1), 50)), requests: String(Math.min(Number(flags["num-requests"] ?? 24), 400)) });
  for (const name of ["prompts", "answers"]) if (flags[name] !== undefined) load.set(name, String(flags[name]));
  return `bench?${load.toString()}`;
}

/** Runs a configuration whenever it changes; the server gives up the run before. */
function useRun(lane: string, flags: Flags | null, change: (change: Partial<Side>) => void): void {
  const key = flags && JSON.stringify(flags);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => {
    if (!flags) return;
    const controller = new AbortController();
    abort.current?.abort();
    abort.current = controller;
    change({ busy: true, progress: 0, fault: "" });
    const timer = setTimeout(() => {
      simulate(cleaned(flags), { lane, frames: true, signal: controller.signal, onProgress: (progress) => change({ progress }) }).then(
        (run) => !controller.signal.aborted && change({ run, ran: flags, busy: false, fault: "" }),
        (problem: unknown) => !controller.signal.aborted && change({ busy: false, fault: told(problem) }),
      );
    }, 150);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
}

function Bound({ side: one }: { side: Side }): JSX.Element {
  return <span class="small muted">bound by {one.run ? only(one.run).bound : "–"}</span>;
}

function Playback({ a, b, main, price }: { a: Side; b: Side | null; main: Side; price: number }): JSX.Element {
  const [time, setTime] = useState(0);
  const [playing, setPlaying] = useState(true);
  const [speed, setSpeed] = useState(4);
  const films = [a, b].map((one) => (one?.run ? film(one.run) : undefined));
  const span = Math.max(...[a, b].map((one) => (one?.run ? only(one.run).summary.duration_s : 0)), 0.001);
  const { run } = main;
  useEffect(() => setTime(0), [run]);
  useFrames(playing && films.some(Boolean), (passed) => setTime((now) => (now >= span ? span : Math.min(now + passed * speed, span))));
  return (
    <Card
      title="In virtual time"
      aside={
        <>
          <Legend items={[["prompt", "prompts"], ["decode", "decoding, in time"], ["cached", "KV used"], ["bad", "late, refused"]]} />
        </>
      }
    >
      <div class="stack">
        {[a.fault, b?.fault].filter(Boolean).map((fault) => (
          <Note key={fault} kind="bad">
            {fault}
          </Note>
        ))}
        {run && isUnstable(run) && (
          <Note kind="warn" title="Unstable">
            The queue still grows at the end: these latencies would only tell how long the run was.
          </Note>
        )}
        {run && <Now side={main} time={time} price={price} />}
        {b && <h3>A</h3>}
        {films[0] && <Stage frames={films[0]} flags={a.ran} time={time} span={span} label={`Configuration A at ${seconds(time)}`} />}
        {films[1] && b && (
          <>
            <h3>B</h3>
            <Stage frames={films[1]} flags={b.ran} time={time} span={span} label={`Configuration B at ${seconds(time)}`} />
          </>
        )}
        {!run && !main.fault && <p class="empty">The first run is being computed.</p>}
        {run && (
          <div class="transport">
            <Button kind="s" onClick={() => (time >= span ? (setTime(0), setPlaying(true)) : setPlaying(!playing))}>
              {time >= span ? "Again" : playing ? "Pause" : "Play"}
            </Button>
            <input type="range" aria-label="Virtual time" min={0} max={span} step={span / 1000} value={time} onInput={(event) => { setPlaying(false); setTime(Number(event.currentTarget.value)); }} />
            <span class="mono small">
              {seconds(time)} / {seconds(span)}
            </span>
            <label class="row small muted">
              speed
              <select class="input speed" value={speed} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
                {[0.5, 1, 2, 4, 10, 30, 100].map((value) => (
                  <option key={value} value={value}>
                    {value}×
                  </option>
                ))}
              </select>
            </label>
          </div>
        )}
      </div>
    </Card>
  );
}

/** Figures of the whole run, with what is so at this moment. */
function Now({ side: one, time, price }: { side: Side; time: number; price: number }): JSX.Element {
  const run = one.run!;
  const { summary } = only(run);
  const frames = film(run)!;
  const waiting = frames.replicas.reduce((sum, replica) => sum + loadAt(replica.loads, time)[2], 0);
  const rho = rhoOf(run, one.ran);
  const cost = costOf(run, one.ran, price);
  const show = (value: number) => (isUnstable(run) ? "unstable" : seconds(value));
  return (
    <Stats>
      <Stat label="tokens/s" value={count(summary.output_tokens_per_s)} />
      <Stat label="TTFT p50" value={show(summary.ttft.p50)} note={isUnstable(run) ? "queue grows" : `p99 ${seconds(summary.ttft.p99)}`} />
      <Stat label="TPOT p50" value={show(summary.tpot.p50)} note={isUnstable(run) ? "" : `p99 ${seconds(summary.tpot.p99)}`} />
      <Stat label="goodput" value={percent(summary.good_fraction)} kind={summary.good_fraction > 0.95 ? "good" : summary.good_fraction > 0.5 ? "warn" : "bad"} />
      <Stat label="ρ" value={Number.isNaN(rho) ? "–" : significant(rho, 2)} kind={rho > 1 ? "bad" : rho > 0.8 ? "warn" : ""} note="of what it could carry" />
      <Stat label="queue now" value={count(waiting)} kind={waiting > 50 ? "bad" : waiting > 0 ? "warn" : ""} />
      <Stat label="$ a million" value={money(cost.million)} note={`${money(cost.hour)} an hour`} />
    </Stats>
  );
}

function Verdict({ experiment, runs, busy }: { experiment: Experiment; runs: (Simulated | null)[]; busy: boolean }): JSX.Element {
  const found = runs.filter((run): run is Simulated => run !== null);
  const wanted = experiment.against ? 2 : 1;
  const isDone = !busy && found.length >= wanted;
  return (
    <Note kind="insight" title={`Experiment ${experiment.number}: ${experiment.name}`}>
      {experiment.look} <span class="muted">Must hold: {experiment.holds}.</span> {isDone && (experiment.check(found) ? <Badge kind="good">it holds</Badge> : <Badge kind="warn">not with these settings</Badge>)}
    </Note>
  );
}

function Sweep({ experiment, onShow }: { experiment: Experiment; onShow: (flags: Flags) => void }): JSX.Element {
  const [runs, setRuns] = useState<Simulated[]>([]);
  const [fault, setFault] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    void (async () => {
      const found: Simulated[] = [];
      try {
        for (const run of experiment.runs) {
          found.push(await simulate(run.flags, { lane: "sweep", frames: true, signal: abort.signal }));
          if (!abort.signal.aborted) setRuns([...found]);
        }
      } catch (problem) {
        if (!abort.signal.aborted) setFault(told(problem));
      }
    })();
    return () => abort.abort();
  }, [experiment]);
  const isDone = runs.length === experiment.runs.length;
  return (
    <Card title={`Experiment ${experiment.number}: ${experiment.name}`} about={experiment.look} aside={isDone ? experiment.check(runs) ? <Badge kind="good">holds: {experiment.holds}</Badge> : <Badge kind="warn">does not hold</Badge> : <Spinner text={`run ${runs.length + 1} of ${experiment.runs.length}`} />}>
      {fault && <Note kind="bad">{fault}</Note>}
      <Table
        label="Runs of the experiment"
        columns={[["run", ""], ["tokens/s", "n"], ["TTFT p50", "n"], ["TTFT p99", "n"], ["TPOT p50", "n"], ["goodput", "n"], ["$ a million", "n"], ["", ""]]}
        rows={experiment.runs.map((run, number) => {
          const done = runs[number];
          if (!done) return [run.label, "…", "", "", "", "", "", ""];
          const { summary } = only(done);
          const unstable = isUnstable(done);
          return [
            run.label,
            count(summary.output_tokens_per_s),
            unstable ? "unstable" : seconds(summary.ttft.p50),
            seconds(summary.ttft.p99),
            seconds(summary.tpot.p50),
            percent(summary.good_fraction),
            money(costOf(done, run.flags, 0).million),
            <Button kind="quiet s" onClick={() => onShow(run.flags)}>
              Show
            </Button>,
          ];
        })}
      />
    </Card>
  );
}

/** Load and latency over virtual time. */
function Curves({ side: one }: { side: Side }): JSX.Element {
  const frames = film(one.run!)!;
  const span = only(one.run!).summary.duration_s;
  const { x, running, waiting, kv } = useMemo(() => {
    const times = Array.from({ length: 240 }, (_, index) => (span * index) / 239);
    const at = times.map((time) => frames.replicas.map((replica) => loadAt(replica.loads, time)));
    const sum = (place: 1 | 2) => at.map((loads) => loads.reduce((total, load) => total + load[place], 0));
    return { x: times, running: sum(1), waiting: sum(2), kv: at.map((loads) => (100 * loads.reduce((total, load) => total + load[3], 0)) / loads.length) };
  }, [frames]);
  const points = useMemo(() => {
    const size = Math.max(Math.ceil(frames.requests.length / 600), 1);
    return frames.requests.filter((request, index) => index % size === 0 && request[1] >= 0);
  }, [frames]);
  return (
    <div class="grid">
      <Card class="c6" title="Load over time">
        <Plot label="Sequences running and waiting" x={x} xLabel="virtual seconds" y2Label="KV %" lines={[{ label: "running", values: running, colour: "decode" }, { label: "waiting", values: waiting, colour: "bad", dash: [4, 3] }, { label: "KV %", values: kv, colour: "cached", right: true }]} />
      </Card>
      <Card class="c6" title="TTFT by arrival" about="Each point a request; above the line it is late.">
        <Plot
          label="Time to first token of each request"
          height={196}
          x={points.map((request) => request[0])}
          xLabel="arrival, virtual seconds"
          logY
          format={seconds}
          lines={[
            { label: "TTFT", values: points.map((request) => Math.max(request[1] - request[0], 1e-4)), colour: "prompt", points: true, stroke: false },
            { label: "SLO", values: points.map(() => Number(one.ran["ttft-s"] ?? 0.5)), colour: "bad", dash: [5, 4] },
          ]}
        />
      </Card>
    </div>
  );
}
