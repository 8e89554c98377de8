/** Where the time of one request went. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, told, withModel } from "../../api";
import { count, ms } from "../../format";
import { type Colours } from "../../theme";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";
import { Button, Card, Legend, Note, type Swatch } from "../../ui/kit";
import { miss } from "./requests";

export interface Fall {
  request_id: number;
  call_id: string;
  num_prompt: number;
  num_cached: number;
  num_tokens: number;
  miss: string;
  differs: [number, number, number] | null;
  differs_text?: [string, string];
  outcome: string;
  is_over: boolean;
  total_ms: number;
  spans: { name: string; start_ms: number; end_ms: number }[];
  chunks: { start_ms: number; end_ms: number }[];
  tokens_ms: number[];
  stalls: { start_ms: number; gap_ms: number; cause: string; by: number[] }[];
}

const COLOURS: Record<string, keyof Colours> = { client: "idle", router: "draft", network: "draft", receive: "idle", tokenize: "cached", load: "bad", queue: "idle", prefill: "prompt", decode: "decode", flush: "cached" };
const LEGEND: readonly (readonly [Swatch, string, readonly string[]])[] = [
  ["idle", "client (its network and browser)", ["client"]],
  ["draft", "router, network to the replica", ["router", "network"]],
  ["bad", "load of the model", ["load"]],
  ["idle", "receive, queue", ["receive", "queue"]],
  ["cached", "tokenize, flush", ["tokenize", "flush"]],
  ["prompt", "prefill, a bar a chunk", ["prefill"]],
  ["decode", "decode, a tick a token", ["decode"]],
];

export function Waterfall({ id, onClose }: { id: number; onClose: () => void }): JSX.Element {
  const [fall, setFall] = useState<Fall | null>(null);
  const [fault, setFault] = useState("");
  useEffect(() => {
    let timer = 0;
    const ask = () =>
      void get<Fall>(withModel(`/app/v1/requests/${id}`)).then(
        (found) => {
          setFall(found);
          if (!found.is_over) timer = window.setTimeout(ask, 400);
        },
        (problem: unknown) => setFault(told(problem)),
      );
    ask();
    return () => clearTimeout(timer);
  }, [id]);
  return (
    <Card
      title={`Request ${id}`}
      aside={
        <Button kind="quiet s" onClick={onClose}>
          Close
        </Button>
      }
    >
      {fault && <Note kind="bad">{fault}</Note>}
      {fall && <FallView fall={fall} />}
    </Card>
  );
}

export function FallView({ fall }: { fall: Fall }): JSX.Element {
  return (
    <div class="stack">
      <p class="small muted">
        {count(fall.num_prompt)} prompt tokens, {count(fall.num_cached)} cached; {count(fall.num_tokens)} generated in {ms(fall.total_ms)}
        {fall.outcome && `; ended: ${fall.outcome}`}
      </p>
      <Canvas height={fall.spans.length * 28 + 26} label={fall.spans.map((one) => `${one.name} ${ms(one.end_ms - one.start_ms)}`).join(", ")} draw={(pen) => draw(pen, fall)} />
      <Legend items={legendOf(fall)} />
      {fall.miss && <p class="small">Prefix cache: {miss(fall)}{fall.differs_text && ` (“${fall.differs_text[0]}” where “${fall.differs_text[1]}” is cached)`}</p>}
      {fall.stalls.length > 0 && (
        <ul class="plain small">
          {fall.stalls.slice(0, 6).map((stall, number) => (
            <li key={number}>
              Stalled {ms(stall.gap_ms)} at {ms(stall.start_ms)}: {stall.cause}
              {stall.by.length > 0 && ` of request ${stall.by.map((one) => `#${one}`).join(", ")}`}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function legendOf(fall: Fall): (readonly [Swatch, string])[] {
  const there = new Set(fall.spans.map((span) => span.name));
  const rows = LEGEND.filter(([, , names]) => names.some((name) => there.has(name))).map(([kind, text]) => [kind, text] as const);
  return fall.stalls.length ? [...rows, ["bad", "stall"]] : rows;
}

function draw(pen: Pen, fall: Fall): void {
  const { c, width } = pen;
  const [left, right] = [74, 70];
  const x = (time: number) => left + ((width - left - right) * time) / Math.max(fall.total_ms, 0.001);
  fall.spans.forEach((span, row) => {
    const y = row * 28 + 4;
    const colour = c[COLOURS[span.name] ?? "idle"];
    words(pen, span.name, 0, y + 9, c.text, "left", 12);
    box(pen, left, y, width - left - right, 18, c.sunken, 3);
    if (span.name === "decode" && fall.tokens_ms.length) {
      pen.ctx.fillStyle = colour;
      for (const tick of fall.tokens_ms) pen.ctx.fillRect(x(tick), y, 1.5, 18);
      for (const stall of fall.stalls) hatch(pen, x(stall.start_ms), y, x(stall.start_ms + stall.gap_ms) - x(stall.start_ms), 18, c.bad);
    } else if (span.name === "prefill" && fall.chunks.length) {
      for (const chunk of fall.chunks) box(pen, x(chunk.start_ms), y, Math.max(x(chunk.end_ms) - x(chunk.start_ms) - 1, 1.5), 18, colour);
    } else {
      box(pen, x(span.start_ms), y, Math.max(x(span.end_ms) - x(span.start_ms), 1.5), 18, colour);
    }
    words(pen, ms(span.end_ms - span.start_ms), width, y + 9, c.muted, "right", 12);
  });
  const y = fall.spans.length * 28 + 12;
  for (let i = 0; i <= 4; i++) words(pen, ms((fall.total_ms * i) / 4), x((fall.total_ms * i) / 4), y, c.muted, i ? "center" : "left", 11);
}
