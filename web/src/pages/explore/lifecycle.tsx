/** 1: a real request through its stations. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { about, fleet } from "../../about";
import { get, told, withModel } from "../../api";
import { card } from "../../data/cards";
import { bytes, count, ms } from "../../format";
import { useStream } from "../../live";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { useFrames, useKept } from "../../ui/hooks";
import { Button, Card, Note, Slider, Stat, Stats, TextField } from "../../ui/kit";
import { type Fall, FallView } from "../dashboard/waterfall";
import { fallOf } from "../playground/fall";
import { answers } from "../playground/stream";
import { Tree } from "../playground/tree";
import { Frame } from "./frame";

const STATIONS = ["receive", "tokenize", "queue", "embed", "layers", "logits", "sample", "send"];
const DEFAULTS = { prompt: "Explain in one sentence what a penstock does.", tokens: 64, speed: 5, copies: 1 };

export function Lifecycle(): JSX.Element {
  useEffect(useStream, []);
  const [state, set] = useKept(DEFAULTS);
  const [falls, setFalls] = useState<Fall[]>([]);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [time, setTime] = useState(0);
  const abort = useRef<AbortController | null>(null);
  const fall = falls[0];
  useFrames(!!fall && time < fall.total_ms, (passed) => setTime((now) => now + (passed * 1000) / (11 - state.speed)));
  const send = async () => {
    setBusy(true);
    setFault("");
    abort.current = new AbortController();
    const body = { messages: [{ role: "user", content: state.prompt }], max_tokens: state.tokens, temperature: 0.7, stream: true, stream_options: { include_usage: true }, return_timings: true };
    try {
      const tree = new Tree();
      const turns = Array.from({ length: state.copies }, () => tree.add("assistant", "", 0));
      const ids = await answers(turns, turns.map(() => body), abort.current.signal, () => undefined);
      const failed = turns.find((turn) => turn.state === "failed");
      if (failed) throw new Error(failed.note);
      setFalls(fleet.value?.is_router ? turns.map(fallOf) : await Promise.all(ids.map((id) => get<Fall>(withModel(`/app/v1/requests/${encodeURIComponent(id)}`)))));
      setTime(0);
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy(false);
  };
  const memory = new Map(about.value?.memory ?? []);
  const weights = memory.get("weights") ?? 0;
  const passes = fall ? fall.num_tokens : 0;
  return (
    <Frame
      card={card("lifecycle")}
      state={falls}
      controls={
        <>
          <TextField label="Prompt" value={state.prompt} rows={3} onChange={(prompt) => set({ prompt })} />
          <Slider label="Answer, tokens" value={state.tokens} min={1} max={512} onChange={(tokens) => set({ tokens })} />
          <Slider label="Replay speed" value={state.speed} min={1} max={10} onChange={(speed) => set({ speed })} />
          <Slider label="Copies" value={state.copies} min={1} max={16} onChange={(copies) => set({ copies })} />
          <Button kind="primary" disabled={busy} onClick={() => void send()}>
            {busy ? "Waiting for the answer" : "Send it"}
          </Button>
          {fall && (
            <Button onClick={() => setTime(0)}>Replay</Button>
          )}
        </>
      }
    >
      {fault && <Note kind="bad">{fault}</Note>}
      <Card title="Stations" about="A token is a dot: it leaves at sample, and returns to embed to make the next.">
        <Canvas height={150} label={fall ? `The request at ${ms(time)}` : "Stations of a request"} draw={(pen) => stations(pen, fall, time)} />
      </Card>
      {fall && (
        <Card title="Where the time went" about="Recorded, no timer is guessed.">
          <div class="stack">
            <FallView fall={fall} />
            <Stats>
              <Stat label="passes" value={count(passes)} note="one a token" />
              <Stat label="weights a pass" value={bytes(weights)} />
              <Stat label="read in all" value={bytes(passes * weights)} note="and the KV beside it" />
              {falls.length > 1 && <Stat label="slowest of all" value={ms(Math.max(...falls.map((one) => one.total_ms)))} note={`of ${falls.length} copies`} />}
            </Stats>
          </div>
        </Card>
      )}
    </Frame>
  );
}

function stations(pen: Pen, fall: Fall | undefined, time: number): void {
  const { c, width, ctx } = pen;
  const gap = width / STATIONS.length;
  const at = (index: number) => gap * (index + 0.5);
  const span = (name: string) => fall?.spans.find((one) => one.name === name);
  const first = span("prefill")?.end_ms ?? Infinity;
  const stage = !fall ? -1 : time >= fall.total_ms ? 8 : time >= first ? 4 : time >= (span("prefill")?.start_ms ?? Infinity) ? 3 : time >= (span("queue")?.start_ms ?? Infinity) ? 2 : time >= (span("tokenize")?.start_ms ?? Infinity) ? 1 : 0;
  ctx.strokeStyle = c.line;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(at(0), 60);
  ctx.lineTo(at(7), 60);
  ctx.moveTo(at(6), 78);
  ctx.bezierCurveTo(at(6), 140, at(3), 140, at(3), 78);
  ctx.stroke();
  STATIONS.forEach((name, index) => {
    const isOn = stage === index || (stage === 3 && index <= 5 && index >= 3) || (stage === 4 && index >= 3);
    const colour = isOn ? (stage === 3 ? c.prompt : c.decode) : c.sunken;
    box(pen, at(index) - Math.min(gap * 0.42, 48), 42, Math.min(gap * 0.84, 96), 36, colour, 9);
    words(pen, name, at(index), 60, isOn ? c.panel : c.muted, "center", width < 560 ? 9 : 12);
  });
  if (!fall) return;
  const done = fall.tokens_ms.filter((one) => one <= time);
  const next = fall.tokens_ms[done.length];
  if (stage === 4 && next !== undefined) {
    const previous = done.at(-1) ?? first;
    const share = Math.min((time - previous) / Math.max(next - previous, 1e-6), 1);
    const x = at(3) + (at(6) - at(3)) * share;
    ctx.fillStyle = c.decode;
    ctx.beginPath();
    ctx.arc(x, 60, 7, 0, 7);
    ctx.fill();
    ctx.strokeStyle = c.panel;
    ctx.stroke();
  }
  const shown = Math.min(done.length, 60);
  for (let i = 0; i < shown; i++) box(pen, width - 8 - (i % 30) * 6, 12 + Math.floor(i / 30) * 8, 4, 6, c.decode, 1);
  words(pen, `${ms(Math.min(time, fall.total_ms))}: ${done.length} of ${fall.num_tokens} tokens sent`, 4, 16, c.muted);
}
