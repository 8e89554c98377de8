/** A heatmap: when against how long, on a log scale. */
import type { JSX } from "preact";
import { seconds } from "../../format";
import { box, Canvas, type Pen, words } from "../../ui/draw";

const [ROWS, COLUMNS, SPAN_S] = [14, 40, 300];
const [LOW, HIGH] = [0.001, 30];

const rowOf = (value: number) => Math.min(Math.max(Math.floor((Math.log(value / LOW) / Math.log(HIGH / LOW)) * ROWS), 0), ROWS - 1);
const edge = (row: number) => LOW * Math.pow(HIGH / LOW, row / ROWS);

export function Heat({ samples, label }: { samples: [number, number][]; label: string }): JSX.Element {
  const cells = new Map<number, number>();
  for (const [ago, value] of samples) {
    if (ago >= SPAN_S || value <= 0) continue;
    const key = rowOf(value) * COLUMNS + (COLUMNS - 1 - Math.floor((ago / SPAN_S) * COLUMNS));
    cells.set(key, (cells.get(key) ?? 0) + 1);
  }
  const most = Math.max(...cells.values(), 1);
  const left = 52;
  const size = (width: number) => (width - left) / COLUMNS;
  const draw = (pen: Pen) => {
    const { c } = pen;
    const [w, h] = [size(pen.width), 150 / ROWS];
    for (let row = 0; row < ROWS; row++) {
      for (let column = 0; column < COLUMNS; column++) {
        const number = cells.get(row * COLUMNS + column) ?? 0;
        pen.ctx.globalAlpha = number ? 0.25 + (0.75 * number) / most : 1;
        box(pen, left + column * w, 150 - (row + 1) * h, w - 1, h - 1, number ? c.decode : c.sunken, 1);
      }
    }
    pen.ctx.globalAlpha = 1;
    for (const row of [0, 5, 9, 13]) words(pen, seconds(edge(row)), left - 6, 150 - row * h - h / 2, c.muted, "right", 11);
    words(pen, "5 min ago", left, 162, c.muted, "left", 11);
    words(pen, "now", pen.width, 162, c.muted, "right", 11);
    if (!cells.size) words(pen, "no request has ended lately", left + (pen.width - left) / 2, 75, c.muted, "center", 13);
  };
  const tip = (x: number, y: number, width: number) => {
    const [column, row] = [Math.floor((x - left) / size(width)), ROWS - 1 - Math.floor(y / (150 / ROWS))];
    const number = cells.get(row * COLUMNS + column);
    return number ? `${number} between ${seconds(edge(row))} and ${seconds(edge(row + 1))}` : null;
  };
  return <Canvas height={172} label={`${label} of ${samples.length} requests over five minutes`} draw={draw} tip={tip} />;
}
