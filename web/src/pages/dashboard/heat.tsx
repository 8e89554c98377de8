/** A heatmap: when against how long, on a log scale. */
import type { JSX } from "preact";
import { seconds } from "../../format";
import { Boxes, Canvas, type Pen, words } from "../../ui/draw";

const [ROWS, COLUMNS, SPAN_S] = [14, 40, 300];
const [LOW, HIGH] = [0.001, 30];

const rowOf = (value: number) => Math.min(Math.max(Math.floor((Math.log(value / LOW) / Math.log(HIGH / LOW)) * ROWS), 0), ROWS - 1);
const edge = (row: number) => LOW * Math.pow(HIGH / LOW, row / ROWS);

const LEFT = 52;
const CELLS = 150;
const SHADES = 8;

/** How many requests lie in each cell, from the lowest row on. */
function counted(samples: [number, number][]): Uint16Array {
  const cells = new Uint16Array(ROWS * COLUMNS);
  for (const [ago, value] of samples) {
    if (ago < 0 || ago >= SPAN_S || value <= 0) continue;
    cells[rowOf(value) * COLUMNS + (COLUMNS - 1 - Math.floor((ago / SPAN_S) * COLUMNS))]! += 1;
  }
  return cells;
}

export function Heat({ samples, label }: { samples: [number, number][]; label: string }): JSX.Element {
  const cells = counted(samples);
  const size = (width: number) => (width - LEFT) / COLUMNS;
  const draw = (pen: Pen) => {
    const { c } = pen;
    const [w, h] = [size(pen.width), CELLS / ROWS];
    const most = cells.reduce((high, number) => Math.max(high, number), 1);
    const shades = Array.from({ length: SHADES }, () => new Boxes());
    cells.forEach((number, place) => {
      const [row, column] = [Math.floor(place / COLUMNS), place % COLUMNS];
      const shade = number ? Math.ceil((SHADES * number) / most) - 1 : SHADES - 1;
      shades[shade]!.add(number ? c.decode : c.sunken, LEFT + column * w, CELLS - (row + 1) * h, w - 1, h - 1);
    });
    shades.forEach((boxes, shade) => {
      pen.ctx.globalAlpha = 0.25 + (0.75 * (shade + 1)) / SHADES;
      boxes.draw(pen);
    });
    pen.ctx.globalAlpha = 1;
    for (const row of [0, 5, 9, 13]) words(pen, seconds(edge(row)), LEFT - 6, CELLS - row * h - h / 2, c.muted, "right", 11);
    words(pen, "5 min ago", LEFT, 162, c.muted, "left", 11);
    words(pen, "now", pen.width, 162, c.muted, "right", 11);
    if (!cells.some(Boolean)) words(pen, "no request has ended lately", LEFT + (pen.width - LEFT) / 2, CELLS / 2, c.muted, "center", 13);
  };
  const tip = (x: number, y: number, width: number) => {
    const [column, row] = [Math.floor((x - LEFT) / size(width)), ROWS - 1 - Math.floor(y / (CELLS / ROWS))];
    const number = column >= 0 && row >= 0 ? cells[row * COLUMNS + column] : 0;
    return number ? `${number} between ${seconds(edge(row))} and ${seconds(edge(row + 1))}` : null;
  };
  return <Canvas height={172} label={`${label} of ${samples.length} requests over five minutes`} draw={draw} stamp={cells.join()} tip={tip} />;
}
