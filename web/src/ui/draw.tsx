/** Drawings: a canvas that knows its size, the theme's colours and what lies under the pointer; and line plots. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { colours, type Colours } from "../theme";
import { tip } from "./tip";

export interface Pen {
  ctx: CanvasRenderingContext2D;
  width: number;
  height: number;
  c: Colours;
  /** Nothing is drawn yet: of a drawing that is kept, all of it has to be. */
  isFresh: boolean;
}

type Place = readonly [number, number];

export function Canvas(props: {
  height: number;
  label: string;
  draw: (pen: Pen) => void;
  /** What the drawing shows: it is drawn anew only when this changes. Without it, whenever its page is. */
  stamp?: unknown;
  /** What was drawn stays, and only changes are drawn over it. */
  isKept?: boolean;
  tip?: (x: number, y: number, width: number) => string | null;
  onPick?: (x: number, y: number, width: number) => void;
}): JSX.Element {
  const ref = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const drawn = useRef<readonly unknown[]>([]);
  const at = useRef<{ x: number; y: number; place: Place } | null>(null);
  const c = colours.value;
  useEffect(() => {
    const parent = ref.current!.parentElement!;
    const observer = new ResizeObserver(() => setWidth(Math.floor(parent.clientWidth)));
    observer.observe(parent);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const shape = [width, props.height, c] as const;
    const isFresh = shape.some((value, index) => value !== drawn.current[index]);
    const isSame = props.stamp !== undefined && props.stamp === drawn.current[3];
    if (width < 2 || (!isFresh && isSame)) return;
    drawn.current = [...shape, props.stamp];
    const ctx = prepared(ref.current!, width, props.height, isFresh || !props.isKept);
    props.draw({ ctx, width, height: props.height, c, isFresh });
  });
  const tell = () => {
    const { current } = at;
    const text = current && props.tip ? props.tip(...current.place, width) : null;
    tip.value = current && text ? { x: current.x, y: current.y, text } : null;
  };
  useEffect(() => {
    if (at.current) tell();
  });
  useEffect(
    () => () => {
      if (at.current) tip.value = null;
    },
    [],
  );
  const place = (event: MouseEvent): Place => {
    const box = ref.current!.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  return (
    <div class="figure">
      <canvas
        ref={ref}
        role="img"
        aria-label={props.label}
        style={{ width: "100%", height: `${props.height}px`, cursor: props.onPick ? "pointer" : "default" }}
        onMouseMove={(event) => {
          if (!props.tip) return;
          at.current = { x: event.clientX, y: event.clientY, place: place(event) };
          tell();
        }}
        onMouseLeave={() => {
          if (at.current) tip.value = null;
          at.current = null;
        }}
        onClick={(event) => props.onPick?.(...place(event), width)}
      />
    </div>
  );
}

/** The canvas at its size in pixels of the screen, emptied if it is to be. */
function prepared(canvas: HTMLCanvasElement, width: number, height: number, isCleared: boolean): CanvasRenderingContext2D {
  const scale = Math.min(devicePixelRatio || 1, 2);
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const ctx = canvas.getContext("2d")!;
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  if (isCleared) ctx.clearRect(0, 0, width, height);
  ctx.font = "12px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  return ctx;
}

/** Diagonal lines over a rectangle: reserved but unused, lost, cut. */
export function hatch(pen: Pick<Pen, "ctx">, x: number, y: number, w: number, h: number, colour: string): void {
  const { ctx } = pen;
  if (w <= 0 || h <= 0) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, w, h);
  ctx.clip();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let i = -h; i < w; i += 5) {
    ctx.moveTo(x + i, y + h);
    ctx.lineTo(x + i + h, y);
  }
  ctx.stroke();
  ctx.restore();
}

export function box(pen: Pen, x: number, y: number, w: number, h: number, fill: string, radius = 2): void {
  const { ctx } = pen;
  if (w <= 0 || h <= 0) return;
  ctx.fillStyle = fill;
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, Math.min(radius, w / 2, h / 2));
  ctx.fill();
}

/** Many rectangles by colour: x, y, width, height one after the other. No path is made of them, and a colour is set once. */
export class Boxes {
  private readonly byFill = new Map<string, number[]>();

  add(fill: string, x: number, y: number, w: number, h: number): void {
    if (w <= 0 || h <= 0) return;
    const found = this.byFill.get(fill);
    if (found) found.push(x, y, w, h);
    else this.byFill.set(fill, [x, y, w, h]);
  }

  draw({ ctx }: Pen): void {
    for (const [fill, places] of this.byFill) {
      ctx.fillStyle = fill;
      for (let i = 0; i < places.length; i += 4) ctx.fillRect(places[i]!, places[i + 1]!, places[i + 2]!, places[i + 3]!);
    }
  }
}

export function words(pen: Pen, text: string, x: number, y: number, colour?: string, align: CanvasTextAlign = "left", size = 12): void {
  const { ctx } = pen;
  ctx.font = `${size}px system-ui, sans-serif`;
  ctx.fillStyle = colour ?? pen.c.muted;
  ctx.textAlign = align;
  ctx.fillText(text, x, y);
}

export interface Line {
  label: string;
  values: (number | null)[];
  colour: keyof Colours;
  right?: boolean;
  dash?: number[];
  fill?: boolean;
  points?: boolean;
  stroke?: boolean;
}

export function Plot(props: {
  x: number[];
  lines: Line[];
  height?: number;
  label: string;
  xLabel?: string;
  yLabel?: string;
  y2Label?: string;
  logX?: boolean;
  logY?: boolean;
  logY2?: boolean;
  format?: (value: number) => string;
  formatX?: (value: number) => string;
  format2?: (value: number) => string;
  yMin?: number;
  band?: [number, number];
  /** From this x on nothing can be had: drawn hatched. */
  refused?: { from: number; text: string } | undefined;
  mark?: { x: number; text: string } | undefined;
  legend?: boolean;
}): JSX.Element {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const c = colours.value;
  const height = props.height ?? 220;
  const shape = JSON.stringify([
    props.lines.map((line) => [line.label, line.colour, line.right, line.dash, line.points]),
    c,
    height,
    props.logX,
    props.logY,
    props.logY2,
    props.band,
    props.refused,
    props.mark,
  ]);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const element = holder.current!;
    const short = (value: number) => compact(value);
    const axis = (label: string | undefined, format: (value: number) => string, extra: Partial<uPlot.Axis>): uPlot.Axis => ({
      stroke: c.muted,
      grid: { stroke: c.line, width: 1 },
      ticks: { stroke: c.line, width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
      labelSize: 18,
      values: (_: uPlot, ticks: number[]) => ticks.map((tick) => (tick === null ? "" : format(tick))),
      ...(label ? { label } : {}),
      ...extra,
    });
    const first = latest.current;
    const options: uPlot.Options = {
      width: Math.max(element.clientWidth, 100),
      height,
      legend: { show: first.legend ?? true, live: true },
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, distr: first.logX ? 3 : 1 },
        y: {
          distr: first.logY ? 3 : 1,
          range: first.logY ? (_, low, high) => [low || 1e-6, high || 1] : (_, low, high) => [Math.min(latest.current.yMin ?? 0, low ?? 0), (high || 1) * 1.06],
        },
        y2: { distr: first.logY2 ? 3 : 1, range: first.logY2 ? (_, low, high) => [low || 1e-6, high || 1] : (_, __, high) => [0, (high || 1) * 1.06] },
      },
      axes: [
        axis(first.xLabel, first.formatX ?? short, { size: 30 }),
        axis(first.yLabel, first.format ?? short, { size: 54, scale: "y" }),
        ...(first.lines.some((line) => line.right) ? [axis(first.y2Label, first.format2 ?? short, { side: 1, size: 54, scale: "y2", grid: { show: false } })] : []),
      ],
      series: [
        { label: first.xLabel ?? "", value: (_, value) => (value === null ? "–" : (first.formatX ?? short)(value)) },
        ...first.lines.map((line): uPlot.Series => ({
          label: line.label,
          scale: line.right ? "y2" : "y",
          stroke: c[line.colour],
          width: line.stroke === false ? 0 : 2,
          spanGaps: true,
          value: (_, value) => (value === null ? "–" : ((line.right ? first.format2 : first.format) ?? short)(value)),
          points: { show: line.points ?? false, size: 7, fill: c[line.colour], stroke: c[line.colour] },
          ...(line.dash ? { dash: line.dash } : {}),
          ...(line.fill ? { fill: `${c[line.colour]}22` } : {}),
        })),
      ],
      hooks: {
        drawClear: [
          (u) => {
            const { band, refused } = latest.current;
            if (refused && refused.from < (u.scales["x"]?.max ?? refused.from)) {
              const from = Math.max(u.valToPos(refused.from, "x", true), u.bbox.left);
              hatch(u, from, u.bbox.top, u.bbox.left + u.bbox.width - from, u.bbox.height, `${c.bad}66`);
            }
            if (!band) return;
            const left = u.valToPos(Math.max(band[0], u.scales["x"]?.min ?? band[0]), "x", true);
            const right = u.valToPos(Math.min(band[1], u.scales["x"]?.max ?? band[1]), "x", true);
            u.ctx.fillStyle = `${c.decode}1c`;
            u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
          },
        ],
        draw: [
          (u) => {
            const { mark, refused } = latest.current;
            if (refused && refused.from < (u.scales["x"]?.max ?? refused.from)) {
              u.ctx.save();
              u.ctx.textAlign = "right";
              const [right, low] = [u.bbox.left + u.bbox.width - 6, u.bbox.top + u.bbox.height - 16];
              const { width } = u.ctx.measureText(refused.text);
              u.ctx.fillStyle = c.panel;
              u.ctx.fillRect(right - width - 4, low - 12, width + 8, 24);
              u.ctx.fillStyle = c.bad;
              u.ctx.fillText(refused.text, right, low);
              u.ctx.restore();
            }
            if (!mark) return;
            const x = u.valToPos(mark.x, "x", true);
            u.ctx.save();
            u.ctx.strokeStyle = c.bad;
            u.ctx.setLineDash([4, 4]);
            u.ctx.beginPath();
            u.ctx.moveTo(x, u.bbox.top);
            u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
            u.ctx.stroke();
            u.ctx.fillStyle = c.text;
            u.ctx.textAlign = x > u.bbox.left + u.bbox.width * 0.7 ? "right" : "left";
            u.ctx.fillText(mark.text, x + (u.ctx.textAlign === "right" ? -6 : 6), u.bbox.top + 12);
            u.ctx.restore();
          },
        ],
      },
    };
    const data = [first.x, ...first.lines.map((line) => line.values)] as uPlot.AlignedData;
    const made = new uPlot(options, data, element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(element.clientWidth, 100), height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([props.x, ...props.lines.map((line) => line.values)] as uPlot.AlignedData);
  }, [props.x, props.lines]);
  return <div class="figure" ref={holder} role="img" aria-label={props.label} />;
}

export function compact(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return trim(value);
}

function trim(value: number): string {
  return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
}
