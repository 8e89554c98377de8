/** Streams of this very server, and a long prompt that comes while they type: who stutters, by this page's clock. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { fleet, lookAtFleet } from "../../about";
import { count, ms } from "../../format";
import { Plot } from "../../ui/draw";
import { Button, Card, Note, SourceBadge, Stat, Stats } from "../../ui/kit";
import { DEFAULTS as SETTINGS, streamed } from "../playground/settings";
import { answer } from "../playground/stream";
import { Tree, type Turn } from "../playground/tree";

const STREAMS = 3;
const TOKENS = 96;
/** Tokens each stream has typed before the long prompt is sent. */
const BEFORE = 24;
const WORDS = ["river", "dam", "valve", "pipe", "gate"];

interface Trial {
  streams: Turn[];
  starts: number[];
  long: Turn;
  /** When the long prompt was sent, by the page's clock. */
  sent: number | null;
}

/** Gaps of all streams, each with the time at which it ended. */
function gapsOf({ streams, starts }: Trial): { at: number; gap: number }[] {
  const found = streams.flatMap((turn, index) => turn.ticks.slice(1).map((tick, place) => ({ at: starts[index]! + tick, gap: tick - turn.ticks[place]! })));
  return found.sort((a, b) => a.at - b.at);
}

const longest = (gaps: { gap: number }[]) => (gaps.length ? Math.max(...gaps.map((one) => one.gap)) : NaN);

function moved(): number {
  return (fleet.value?.handovers ?? []).reduce((sum, [{ choice }, number]) => sum + (choice === "local" ? 0 : number), 0);
}

export function Stutter({ prompt }: { prompt: number }): JSX.Element {
  const [trial, setTrial] = useState<Trial | null>(null);
  const [busy, setBusy] = useState(false);
  const [handed, setHanded] = useState<number | null>(null);
  const [, setTouched] = useState(0);
  const abort = useRef<AbortController | null>(null);
  const run = async () => {
    const tree = new Tree();
    const add = () => tree.add("assistant", "", 0);
    const made: Trial = { streams: Array.from({ length: STREAMS }, add), starts: [], long: add(), sent: null };
    setTrial(made);
    setBusy(true);
    setHanded(null);
    abort.current = new AbortController();
    const { signal } = abort.current;
    await lookAtFleet();
    const before = moved();
    let frame = 0;
    let later: Promise<void> | null = null;
    const touched = () => {
      if (!later && made.streams.every((turn) => turn.ticks.length >= BEFORE)) {
        made.sent = performance.now();
        const words = Array.from({ length: Math.max(Math.round(prompt / 1.3), 8) }, () => WORDS[Math.floor(Math.random() * WORDS.length)]);
        later = answer(made.long, { ...streamed({ ...SETTINGS, logprobs: false, max_tokens: 4 }, [{ role: "user", content: words.join(" ") }]), ignore_eos: true }, signal, touched);
      }
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => setTouched((value) => value + 1));
    };
    await Promise.all(
      made.streams.map((turn, index) => {
        made.starts[index] = performance.now();
        const body = streamed({ ...SETTINGS, logprobs: false, max_tokens: TOKENS }, [{ role: "user", content: `Tell story ${index + 1} of a river.` }]);
        return answer(turn, { ...body, ignore_eos: true }, signal, touched);
      }),
    );
    await later;
    await lookAtFleet();
    setHanded(moved() - before);
    setBusy(false);
  };
  const gaps = trial ? gapsOf(trial) : [];
  const sent = trial?.sent ?? Infinity;
  const first = trial?.long.ticks[0] === undefined ? Infinity : sent + trial.long.ticks[0];
  const quiet = gaps.filter((one) => one.at < sent);
  const beside = gaps.filter((one) => one.at >= sent && one.at - one.gap <= first);
  const begun = trial?.starts[0] ?? 0;
  const roles = (fleet.value?.replicas ?? []).some((one) => one.role);
  const failed = trial && [...trial.streams, trial.long].find((turn) => turn.state === "failed");
  return (
    <Card title="Here, now" aside={<SourceBadge source="live" />} about={`${STREAMS} streams type; after ${BEFORE} tokens each, a prompt of about ${count(prompt)} tokens comes.`}>
      <div class="stack">
        <div class="row">
          {busy ? (
            <Button kind="danger" onClick={() => abort.current?.abort()}>
              Stop
            </Button>
          ) : (
            <Button kind="primary" onClick={() => void run()}>
              Try it on this server
            </Button>
          )}
        </div>
        {failed && <Note kind="bad">{failed.note}</Note>}
        {gaps.length > 1 && (
          <>
            <Stats>
              <Stat label="longest gap before" name="gap-before" value={ms(longest(quiet))} />
              <Stat label="longest gap beside it" name="gap-beside" value={ms(longest(beside))} kind={longest(beside) > 3 * longest(quiet) ? "bad" : beside.length ? "good" : ""} note="while the prompt is computed" />
              <Stat label="its TTFT" name="long-ttft" value={ms(trial?.long.ttft_ms || NaN)} note={`${count(trial?.long.usage?.prompt_tokens ?? 0)} prompt tokens`} />
              {roles && handed !== null && <Stat label="handed over" name="handed" value={count(handed)} note="prompts of this trial" />}
            </Stats>
            <Plot label="Gaps between tokens of the streams" height={150} x={gaps.map((one) => (one.at - begun) / 1000)} xLabel="seconds" format={ms} logY lines={[{ label: "gap", values: gaps.map((one) => Math.max(one.gap, 0.1)), colour: "decode", points: true }]} mark={trial?.sent ? { x: (trial.sent - begun) / 1000, text: "long prompt" } : undefined} />
          </>
        )}
        {!busy && !trial && <p class="small muted">{roles ? "Replicas here have roles: the router decides by its rule who computes the prompt." : "One engine serves here, in chunks. With penstock serve --role 1P1D the same shows prompts computed apart."}</p>}
      </div>
    </Card>
  );
}
