/** The stage: a computed run played back. Requests enter left, queue, pass replicas, leave right in time or late. */
import type { JSX } from "preact";
import { count, percent, seconds } from "../../format";
import type { Flags, Frames, SimLoad, SimRequest, SimStep } from "../../tools";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";

const SHOWN = 8;

/** Few replicas have room to be drawn large. */
const rowOf = (frames: Frames) => (frames.replicas.length === 1 ? 172 : frames.replicas.length === 2 ? 88 : 62);

export function heightOf(frames: Frames): number {
  return Math.max(Math.min(frames.replicas.length, SHOWN) * rowOf(frames) + (frames.replicas.length > SHOWN ? 22 : 0), 170) + 28;
}

function before<T extends readonly number[]>(rows: readonly T[], time: number): number {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle]![0]! <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export function isLate(one: SimRequest, flags: Flags): boolean {
  const [arrival, first, last, , , , tokens, good] = one;
  if (!good || first < 0) return true;
  if (first - arrival > Number(flags["ttft-s"] ?? 0.5)) return true;
  return tokens > 1 && (last - first) / (tokens - 1) > Number(flags["tpot-s"] ?? 0.05);
}

export function loadAt(loads: readonly SimLoad[], time: number): SimLoad {
  return loads[before(loads, time)] ?? [time, 0, 0, 0];
}

export function Stage({ frames, flags, time, span, label }: { frames: Frames; flags: Flags; time: number; span: number; label: string }): JSX.Element {
  const draw = (pen: Pen) => paint(pen, frames, flags, time, Math.min(Math.max(span / 20, 0.4), 6));
  return <Canvas height={heightOf(frames)} label={label} draw={draw} />;
}

function paint(pen: Pen, frames: Frames, flags: Flags, time: number, window: number): void {
  const { c, width, height } = pen;
  const narrow = width < 560;
  const queueX = narrow ? 54 : 110;
  const [left, right] = [queueX + (narrow ? 50 : 90), width - (narrow ? 44 : 120)];
  const shown = frames.replicas.slice(0, SHOWN);
  const now = shown.map((one) => loadAt(one.loads, time));
  const all = frames.replicas.map((one) => loadAt(one.loads, time));
  const waiting = all.reduce((sum, one) => sum + one[2], 0);
  const middle = (height - 28) / 2;
  flow(pen, frames.requests, time, window, [6, queueX - 16], middle, (one) => [one[0], c.prompt]);
  flow(pen, frames.requests, time, window, [right + 10, width - 6], middle, (one) => [one[3], isLate(one, flags) ? c.bad : c.decode]);
  queue(pen, queueX, middle, waiting);
  const size = rowOf(frames);
  shown.forEach((replica, row) => replicaBox(pen, replica.name, replica.steps, now[row]!, time, window, left, row * size + 4, right - left, size - 8));
  if (frames.replicas.length > SHOWN) words(pen, `and ${frames.replicas.length - SHOWN} more replicas`, left, SHOWN * size + 12, c.muted);
  const y = height - 10;
  words(pen, narrow ? "in" : "arriving", 6, y, c.muted, "left", 11);
  words(pen, `queue ${count(waiting)}`, queueX + 12, y, waiting ? c.text : c.muted, "center", 11);
  words(pen, `${count(all.reduce((sum, one) => sum + one[1], 0))} running`, (left + right) / 2, y, c.muted, "center", 11);
  words(pen, narrow ? "out" : "in time ● late ▲", width - 4, y, c.muted, "right", 11);
}

type Place = (one: SimRequest) => [number, string];

/** Dots that travel for a window's time. */
function flow(pen: Pen, requests: SimRequest[], time: number, window: number, [from, to]: [number, number], middle: number, place: Place): void {
  const { ctx, c } = pen;
  let drawn = 0;
  for (let index = 0; index < requests.length && drawn < 400; index++) {
    const [at, colour] = place(requests[index]!);
    const age = (time - at) / window;
    if (age < 0 || age >= 1) continue;
    drawn += 1;
    const x = from + (to - from) * age;
    const y = middle + (((index * 37) % 100) - 50) * (0.9 - 0.5 * age) * (from < 50 ? 1 - 0.5 * age : 1);
    ctx.globalAlpha = 1 - 0.5 * age;
    ctx.fillStyle = colour;
    ctx.beginPath();
    if (colour === c.bad) {
      ctx.moveTo(x, y - 5);
      ctx.lineTo(x + 5, y + 4);
      ctx.lineTo(x - 5, y + 4);
    } else if (colour === c.prompt) ctx.rect(x - 3, y - 3, 6, 6);
    else ctx.arc(x, y, 3.6, 0, 7);
    ctx.fill();
  }
  ctx.globalAlpha = 1;
}

function queue(pen: Pen, x: number, middle: number, waiting: number): void {
  const { c } = pen;
  const rows = Math.floor((2 * middle - 16) / 7);
  const most = rows * 4;
  box(pen, x - 6, 4, 40, 2 * middle - 8, c.sunken, 6);
  for (let index = 0; index < Math.min(waiting, most); index++) {
    box(pen, x + Math.floor(index / rows) * 8, 2 * middle - 14 - (index % rows) * 7, 6, 5, index >= most - 4 ? c.bad : c.prompt, 1);
  }
  if (waiting > most) words(pen, "full", x + 12, 16, c.bad, "center", 11);
}

function replicaBox(pen: Pen, name: string, steps: SimStep[], load: SimLoad, time: number, window: number, x: number, y: number, w: number, h: number): void {
  const { c, ctx } = pen;
  const [, running, waiting, kv] = load;
  box(pen, x, y, w, h, c.sunken, 7);
  const bar = x + 10;
  const barWidth = w - 20;
  const from = time - window;
  const last = before(steps, time);
  const most = Math.max(...steps.slice(Math.max(last - 300, 0), last + 1).map((one) => one[3]), 1);
  for (let index = last; index >= 0; index--) {
    const [start, end, number, sequences, prompt] = steps[index]!;
    if (end < from) break;
    const [a, b] = [bar + (barWidth * (Math.max(start, from) - from)) / window, bar + (barWidth * (Math.min(end, time) - from)) / window];
    const height = 5 + ((h - 39) * sequences) / most;
    box(pen, a, y + h - 16 - height, Math.max(b - a - 0.5, 0.8), height, prompt ? c.prompt : c.decode, 1);
    if (prompt && number > 0 && b - a > 3) box(pen, a, y + h - 18, b - a - 0.5, 2, c.decode, 0);
  }
  box(pen, bar, y + h - 11, barWidth, 5, c.panel, 2);
  box(pen, bar, y + h - 11, barWidth * kv, 5, kv > 0.95 ? c.bad : c.cached, 2);
  if (kv < 1) hatch(pen, bar + barWidth * kv, y + h - 11, barWidth * (1 - kv), 5, c.line);
  ctx.globalAlpha = 1;
  const text = `${name}: ${count(running)} running${waiting ? `, ${count(waiting)} waiting` : ""}, KV ${percent(kv)}`;
  words(pen, w < 240 ? `${count(running)} · KV ${percent(kv)}` : text, bar, y + 10, c.muted, "left", 11);
}

export const clockText = (time: number): string => seconds(time);
