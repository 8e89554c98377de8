/** Throughput against what each user sees: curves of what could be, and dots of what is. Both scales are logarithmic. */
import type { JSX } from "preact";
import { about } from "../about";
import { count, significant } from "../format";
import { type Live, live } from "../live";
import type { Colours } from "../theme";
import { Canvas, compact, type Pen, words } from "./draw";

/** Tokens a second of one user, tokens a second in all (or of a device), and what that is. */
export interface FrontierPoint {
  user: number;
  all: number;
  text: string;
}
export interface Curve {
  label: string;
  colour: keyof Colours;
  points: FrontierPoint[];
  /** Dots alone: they are not one another's neighbours. */
  isScattered?: boolean;
}
export interface Dot extends FrontierPoint {
  label: string;
  colour: keyof Colours;
  shape: "circle" | "diamond" | "star";
}

const HEIGHT = 300;
const [LEFT, RIGHT, TOP, FOOT] = [62, 16, 14, 38];
const NEAR = 14;

type Scale = (value: number) => number;

function range(values: number[]): [number, number] {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max(Math.sqrt(high / low), 1.4) ** 0.25;
  return [low / room, high * room];
}

function ticks([low, high]: [number, number]): number[] {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of [1, 2, 5]) {
      const value = digit * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 9 ? found.filter((value) => Math.log10(value) % 1 === 0) : found;
}

const log = ([low, high]: [number, number], from: number, to: number): Scale => (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low);

/** This server's present point, if it writes anything. */
export function present(now: Live | null = live.value): Dot[] {
  const tpot = now?.latency.tpot.p50;
  if (!now || !tpot || !now.rates.output_per_s || !now.load.num_running) return [];
  const text = `${about.value?.model ?? "this server"}, ${count(now.load.num_running)} running`;
  return [{ user: 1 / tpot, all: now.rates.output_per_s, label: "this server now", text, colour: "prompt", shape: "star" }];
}

export function Frontier(props: { curves: Curve[]; dots: Dot[]; label: string; allLabel: string }): JSX.Element {
  const known = ({ user, all }: FrontierPoint) => user > 0 && all > 0 && Number.isFinite(user) && Number.isFinite(all);
  const curves = props.curves.map((curve) => ({ ...curve, points: curve.points.filter(known) })).filter((curve) => curve.points.length);
  const dots = props.dots.filter(known);
  const points = [...curves.flatMap((curve) => curve.points), ...dots];
  const scales = (width: number): [Scale, Scale, [number, number], [number, number]] => {
    const [x, y] = [range(points.map((one) => one.user)), range(points.map((one) => one.all))];
    return [log(x, LEFT, width - RIGHT), log(y, HEIGHT - FOOT, TOP), x, y];
  };
  const draw = (pen: Pen) => {
    if (!points.length) return;
    const [x, y, across, up] = scales(pen.width);
    axes(pen, x, y, across, up, props.allLabel);
    for (const curve of curves) line(pen, x, y, curve);
    for (const dot of dots) mark(pen, x, y, dot);
  };
  const tip = (left: number, top: number, width: number): string | null => {
    if (!points.length) return null;
    const [x, y] = scales(width);
    const far = (one: FrontierPoint) => Math.hypot(x(one.user) - left, y(one.all) - top);
    const nearest = points.reduce((best, one) => (far(one) < far(best) ? one : best));
    return far(nearest) > NEAR ? null : `${nearest.text}\n${significant(nearest.user)} tokens/s a user\n${significant(nearest.all)} ${props.allLabel}`;
  };
  const told = dots.map((dot) => `${dot.label}: ${significant(dot.user)} a user, ${significant(dot.all)} ${props.allLabel}`).join("; ");
  return (
    <div class="stack">
      <Canvas height={HEIGHT} label={`${props.label}${told ? `. ${told}` : ""}`} draw={draw} stamp={JSON.stringify([curves, dots])} tip={tip} />
      <div class="legend">
        {[...curves, ...dots].map((one) => (
          <span key={one.label} data-frontier={one.label}>
            <i class={`swatch ${one.colour}`} aria-hidden="true" />
            {one.label}
          </span>
        ))}
      </div>
    </div>
  );
}

function axes(pen: Pen, x: Scale, y: Scale, across: [number, number], up: [number, number], allLabel: string): void {
  const { ctx, c, width } = pen;
  ctx.strokeStyle = c.line;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (const value of ticks(across)) {
    ctx.moveTo(x(value), TOP);
    ctx.lineTo(x(value), HEIGHT - FOOT);
    words(pen, compact(value), x(value), HEIGHT - FOOT + 12, c.muted, "center", 11);
  }
  for (const value of ticks(up)) {
    ctx.moveTo(LEFT, y(value));
    ctx.lineTo(width - RIGHT, y(value));
    words(pen, compact(value), LEFT - 8, y(value), c.muted, "right", 11);
  }
  ctx.stroke();
  words(pen, "tokens/s a user", (LEFT + width - RIGHT) / 2, HEIGHT - 8, c.muted, "center", 11);
  ctx.save();
  ctx.translate(10, (TOP + HEIGHT - FOOT) / 2);
  ctx.rotate(-Math.PI / 2);
  words(pen, allLabel, 0, 0, c.muted, "center", 11);
  ctx.restore();
}

function line({ ctx, c }: Pen, x: Scale, y: Scale, { points, colour, isScattered }: Curve): void {
  ctx.strokeStyle = ctx.fillStyle = c[colour];
  ctx.lineWidth = 2;
  ctx.beginPath();
  const sorted = [...points].sort((one, other) => one.user - other.user);
  sorted.forEach((one, place) => (place && !isScattered ? ctx.lineTo(x(one.user), y(one.all)) : ctx.moveTo(x(one.user), y(one.all))));
  ctx.stroke();
  for (const one of sorted) {
    ctx.beginPath();
    ctx.arc(x(one.user), y(one.all), 3, 0, 7);
    ctx.fill();
  }
}

function mark(pen: Pen, x: Scale, y: Scale, dot: Dot): void {
  const { ctx, c, width } = pen;
  const [at, from] = [x(dot.user), y(dot.all)];
  ctx.fillStyle = c[dot.colour];
  ctx.strokeStyle = c.panel;
  ctx.lineWidth = 2;
  ctx.beginPath();
  if (dot.shape === "circle") ctx.arc(at, from, 7, 0, 7);
  else {
    const corners = dot.shape === "diamond" ? 4 : 10;
    for (let corner = 0; corner < corners; corner++) {
      const [angle, far] = [(2 * Math.PI * corner) / corners - Math.PI / 2, dot.shape === "star" && corner % 2 ? 4 : 9];
      ctx.lineTo(at + far * Math.cos(angle), from + far * Math.sin(angle));
    }
    ctx.closePath();
  }
  ctx.stroke();
  ctx.fill();
  const isLate = at > width * 0.7;
  words(pen, dot.label, at + (isLate ? -13 : 13), from, c.text, isLate ? "right" : "left", 12);
}
