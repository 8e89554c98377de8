/** The same prompt k times at once: what a batch does to each of its requests, drawn as a Gantt. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { ms, significant } from "../../format";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { Button, Card, Legend, Note, Slider, SourceBadge, Stat, Stats, TextField } from "../../ui/kit";
import { type Settings, streamed } from "./settings";
import { answers } from "./stream";
import { Tree, type Turn } from "./tree";

const ROW = 22;

export function Copies({ settings }: { settings: Settings }): JSX.Element {
  const [prompt, setPrompt] = useState("List three rivers and the seas they flow into.");
  const [number, setNumber] = useState(4);
  const [turns, setTurns] = useState<Turn[]>([]);
  const [, setCount] = useState(0);
  const [isBusy, setBusy] = useState(false);
  const abort = useRef<AbortController | null>(null);
  const frame = useRef(0);

  const draw = () => {
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => setCount((value) => value + 1));
  };
  const run = async () => {
    const tree = new Tree();
    const made = Array.from({ length: number }, () => tree.add("assistant", "", 0));
    setTurns(made);
    setBusy(true);
    abort.current = new AbortController();
    const body = streamed({ ...settings, logprobs: false }, [{ role: "user", content: prompt }]);
    await answers(made, made.map(() => body), abort.current.signal, draw);
    setBusy(false);
  };
  const ended = turns.filter((turn) => turn.ticks.length > 1);
  const span = Math.max(...turns.map((turn) => turn.total_ms), 1);
  const tokens = turns.reduce((sum, turn) => sum + (turn.usage?.completion_tokens ?? turn.ticks.length), 0);
  return (
    <div class="split">
      <Card title="k copies" about="The same question from k users in the same moment." aside={<SourceBadge source="live" />}>
        <div class="fields">
          <TextField label="Prompt" value={prompt} rows={3} onChange={setPrompt} />
          <Slider label="Copies" value={number} min={1} max={32} onChange={setNumber} />
          {isBusy ? (
            <Button kind="danger" onClick={() => abort.current?.abort()}>
              Stop all
            </Button>
          ) : (
            <Button kind="primary" onClick={() => void run()}>
              Send {number} at once
            </Button>
          )}
        </div>
      </Card>
      <Card title="On one clock">
        {turns.length === 0 ? (
          <p class="empty">Send some, and every stream gets a row: waiting, then a tick for each token.</p>
        ) : (
          <div class="stack">
            <Stats>
              <Stat label="tokens/s in all" value={significant((1000 * tokens) / span)} />
              <Stat label="tokens/s each" value={significant(ended.reduce((sum, turn) => sum + (1000 * (turn.ticks.length - 1)) / (turn.ticks.at(-1)! - turn.ticks[0]! || 1), 0) / (ended.length || 1))} />
              <Stat label="first TTFT" value={ms(Math.min(...ended.map((turn) => turn.ttft_ms)))} />
              <Stat label="last TTFT" value={ms(Math.max(0, ...ended.map((turn) => turn.ttft_ms)))} />
            </Stats>
            <Canvas height={turns.length * ROW + 26} label={`Gantt of ${turns.length} streams over ${ms(span)}`} draw={(pen) => gantt(pen, turns, span)} />
            <Legend items={[["prompt", "waiting and prompt"], ["decode", "a token"], ["bad", "failed or stopped"]]} />
            {turns.some((turn) => turn.state === "failed") && <Note kind="bad">{turns.find((turn) => turn.state === "failed")!.note}</Note>}
          </div>
        )}
      </Card>
    </div>
  );
}

export function gantt(pen: Pen, turns: Turn[], span: number): void {
  const { c, width } = pen;
  const left = 34;
  const x = (time: number) => left + ((width - left - 6) * time) / span;
  turns.forEach((turn, row) => {
    const y = row * ROW + 4;
    words(pen, `#${row + 1}`, 0, y + 8, c.muted, "left", 11);
    box(pen, x(0), y, width - left - 6, 16, c.sunken, 3);
    box(pen, x(0), y + 3, x(turn.ttft_ms || turn.total_ms) - x(0), 10, c.prompt, 2);
    pen.ctx.fillStyle = c.decode;
    for (const tick of turn.ticks) pen.ctx.fillRect(x(tick) - 0.5, y, 1.6, 16);
    if (turn.state === "failed" || turn.state === "stopped") box(pen, x(turn.total_ms) - 3, y, 6, 16, c.bad);
  });
  const y = turns.length * ROW + 14;
  for (let i = 0; i <= 4; i++) words(pen, ms((span * i) / 4), x((span * i) / 4), y, c.muted, i === 0 ? "left" : i === 4 ? "right" : "center", 11);
}
