/** 6: real streams under real load, typing as they come. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { card } from "../../data/cards";
import { ms, significant } from "../../format";
import { useKept } from "../../ui/hooks";
import { Badge, Button, Card, Note, Slider, Stat, Stats } from "../../ui/kit";
import { DEFAULTS as SETTINGS, streamed } from "../playground/settings";
import { answers } from "../playground/stream";
import { Tree, type Turn } from "../playground/tree";
import { Frame } from "./frame";

const DEFAULTS = { streams: 4, prompt: 100, answer: 50 };

function quantile(values: number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted.length ? sorted[low]! + ((sorted[low + 1] ?? sorted[low]!) - sorted[low]!) * (place - low) : NaN;
}

export function Latency(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [turns, setTurns] = useState<Turn[]>([]);
  const [busy, setBusy] = useState(false);
  const [, setCount] = useState(0);
  const abort = useRef<AbortController | null>(null);
  const run = async () => {
    const tree = new Tree();
    const made = Array.from({ length: state.streams }, () => tree.add("assistant", "", 0));
    setTurns(made);
    setBusy(true);
    abort.current = new AbortController();
    const { signal } = abort.current;
    let frame = 0;
    const touched = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => setCount((value) => value + 1));
    };
    await answers(
      made,
      made.map((_, index) => {
        const words = Array.from({ length: Math.max(Math.round(state.prompt / 1.3), 1) }, (_, place) => ["river", "dam", "valve", "pipe", "gate"][(place * 7 + index * 3) % 5]);
        const body = streamed({ ...SETTINGS, logprobs: false, max_tokens: state.answer }, [{ role: "user", content: `Write about ${index} ${words.join(" ")}` }]);
        return { ...body, ignore_eos: true };
      }),
      signal,
      touched,
    );
    setBusy(false);
  };
  const started = turns.filter((turn) => turn.ticks.length > 0);
  const gaps = started.flatMap((turn) => turn.ticks.slice(1).map((tick, index) => tick - turn.ticks[index]!));
  const tpots = started.filter((turn) => turn.ticks.length > 1).map((turn) => (turn.ticks.at(-1)! - turn.ticks[0]!) / (turn.ticks.length - 1));
  const ttfts = started.map((turn) => turn.ttft_ms);
  const ends = started.filter((turn) => turn.state === "done").map((turn) => turn.total_ms);
  const usual = quantile(gaps, 0.5);
  const each = tpots.length ? 1000 / (tpots.reduce((sum, one) => sum + one, 0) / tpots.length) : NaN;
  const server = turns.map((turn) => turn.usage?.timings).filter((one) => one !== undefined);
  const span = Math.max(...turns.map((turn) => turn.total_ms), 1);
  const tokens = turns.reduce((sum, turn) => sum + (turn.usage?.completion_tokens ?? turn.ticks.length), 0);
  return (
    <Frame
      card={card("latency")}
      state={turns}
      command={`penstock bench ${location.origin} --concurrency ${state.streams} --num-requests ${state.streams} --prompts ${state.prompt} --answers ${state.answer}`}
      controls={
        <>
          <Slider label="Streams at once" value={state.streams} min={1} max={64} onChange={(streams) => set({ streams })} />
          <Slider label="Prompt, tokens" value={state.prompt} min={1} max={4096} log onChange={(prompt) => set({ prompt })} />
          <Slider label="Answer, tokens" value={state.answer} min={1} max={1024} log onChange={(value) => set({ answer: value })} />
          {busy ? (
            <Button kind="danger" onClick={() => abort.current?.abort()}>
              Stop
            </Button>
          ) : (
            <Button kind="primary" onClick={() => void run()}>
              Send {state.streams}
            </Button>
          )}
        </>
      }
    >
      <Stats>
        <Stat label="TTFT p50" value={ms(quantile(ttfts, 0.5))} note={`p99 ${ms(quantile(ttfts, 0.99))}`} />
        <Stat label="ITL p50" value={ms(usual)} note={`p99 ${ms(quantile(gaps, 0.99))}`} kind={quantile(gaps, 0.99) > 10 * usual ? "bad" : ""} />
        <Stat label="TPOT p50" value={ms(quantile(tpots, 0.5))} note={`p99 ${ms(quantile(tpots, 0.99))}`} />
        <Stat label="E2E p50" value={ms(quantile(ends, 0.5))} note={`p99 ${ms(quantile(ends, 0.99))}`} />
        <Stat label="tokens/s each" value={significant(each)} kind={each > 25 ? "good" : each < 15 ? "bad" : "warn"} note="reading is 5 to 7" />
        <Stat label="tokens/s in all" value={significant((1000 * tokens) / span)} />
      </Stats>
      {server.length > 0 && <p class="small muted">By this page's clock. By the server's, the mean queue was {ms(server.reduce((sum, one) => sum + (one["queue_ms"] ?? 0), 0) / server.length)} and the mean prompt took {ms(server.reduce((sum, one) => sum + (one["prefill_ms"] ?? 0), 0) / server.length)}.</p>}
      {turns.some((turn) => turn.state === "failed") && <Note kind="bad">{turns.find((turn) => turn.state === "failed")!.note}</Note>}
      <div class="streams">
        {turns.slice(0, 24).map((turn, index) => (
          <Card key={index} title={`Stream ${index + 1}`} aside={<Badge kind={turn.state === "done" ? "good" : turn.state === "failed" ? "bad" : ""}>{turn.ticks.length ? `${turn.ticks.length} tokens` : turn.note || turn.state}</Badge>}>
            <div class="ticks" aria-hidden="true">
              {turn.ticks.slice(-70).map((tick, place, list) => (
                <i key={place} class={place > 0 && tick - list[place - 1]! > 3 * usual ? "late" : ""} />
              ))}
            </div>
            <p class="small typed">{turn.text.slice(-320)}</p>
          </Card>
        ))}
      </div>
      {turns.length === 0 && <p class="empty">Send some streams. Each types as its tokens come; a tick a token, a late one red and taller.</p>}
    </Frame>
  );
}
