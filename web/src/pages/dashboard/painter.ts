/** Blocks of the KV cache as cells of a map that is kept: what differs from the last time is painted over it. */
import type { Pen } from "../../ui/draw";
import type { Colours } from "../../theme";

export const [HELD, SHARED, CACHED, PINNED, HELD_PINNED] = [1, 2, 3, 4, 5];
export const MAP_HEIGHT = 190;

/** Which state a cell of several blocks shows: that of the highest rank among them. */
const RANKS = [0, 3, 4, 1, 2, 5];
/** Cells smaller than this are painted as pixels: a pool may have a hundred thousand blocks. */
const TINY = 6;
const LARGEST = 16;

interface Shape {
  /** Pixels of a cell, cells of a row, blocks of a cell. */
  size: number;
  columns: number;
  each: number;
}

export function shapeOf(blocks: number, width: number): Shape {
  const room = Math.max(width, 1) * MAP_HEIGHT;
  const each = Math.max(Math.ceil(blocks / room), 1);
  const cells = Math.max(Math.ceil(blocks / each), 1);
  let size = Math.min(Math.max(Math.floor(Math.sqrt(room / cells)), 1), LARGEST);
  while (size > 1 && Math.ceil(cells / Math.floor(width / size)) * size > MAP_HEIGHT) size -= 1;
  return { size, columns: Math.max(Math.floor(width / size), 1), each };
}

const fillsOf = (c: Colours) => [c.sunken, c.decode, c.cached, c.cached, c.draft, c.draft];

export class BlockPainter {
  private shown: Uint8Array = new Uint8Array(0);
  private pixels: PixelMap | null = null;

  draw(pen: Pen, blocks: Uint8Array): void {
    const shape = shapeOf(blocks.length, pen.width);
    const cells = shape.each === 1 ? blocks : ranked(blocks, shape.each);
    if (pen.isFresh || cells.length !== this.shown.length) {
      pen.ctx.clearRect(0, 0, pen.width, pen.height);
      this.shown = new Uint8Array(cells.length).fill(255);
      this.pixels = shape.size < TINY ? new PixelMap(fillsOf(pen.c), shape, cells.length) : null;
    }
    if (this.pixels) this.pixels.draw(pen, this.shown, cells);
    else changed(pen, this.shown, cells, shape);
    this.shown = cells;
  }
}

function ranked(blocks: Uint8Array, each: number): Uint8Array {
  const cells = new Uint8Array(Math.ceil(blocks.length / each));
  for (let block = 0; block < blocks.length; block++) {
    const cell = Math.floor(block / each);
    if (RANKS[blocks[block]!]! > RANKS[cells[cell]!]!) cells[cell] = blocks[block]!;
  }
  return cells;
}

/** Cells large enough for a mark in those of two kinds. */
function changed({ ctx, c }: Pen, shown: Uint8Array, cells: Uint8Array, { size, columns }: Shape): void {
  const fills = fillsOf(c);
  for (let cell = 0; cell < cells.length; cell++) {
    const state = cells[cell]!;
    if (state === shown[cell]) continue;
    const [x, y] = [(cell % columns) * size, Math.floor(cell / columns) * size];
    ctx.clearRect(x, y, size, size);
    ctx.globalAlpha = state === CACHED ? 0.45 : 1;
    ctx.fillStyle = fills[state]!;
    ctx.fillRect(x, y, size - 1, size - 1);
    if (state === SHARED || state === HELD_PINNED) {
      ctx.fillStyle = c.decode;
      ctx.fillRect(x + 1, y + 1, (size - 1) / 2.4, (size - 1) / 2.4);
    }
  }
  ctx.globalAlpha = 1;
}

/** A pixel a cell, made larger where it is copied to the page; only rows in which something changed are. */
class PixelMap {
  private readonly small: OffscreenCanvas;
  private readonly brush: OffscreenCanvasRenderingContext2D;
  private readonly image: ImageData;
  private readonly colours: Uint32Array;

  constructor(
    fills: string[],
    private readonly shape: Shape,
    cells: number,
  ) {
    const rows = Math.max(Math.ceil(cells / shape.columns), 1);
    this.small = new OffscreenCanvas(shape.columns, rows);
    this.brush = this.small.getContext("2d", { willReadFrequently: true })!;
    this.colours = Uint32Array.from(fills, (fill, state) => this.colour(fill, state === CACHED ? 0.45 : 1));
    this.image = this.brush.createImageData(shape.columns, rows);
  }

  draw({ ctx }: Pen, shown: Uint8Array, cells: Uint8Array): void {
    const pixels = new Uint32Array(this.image.data.buffer);
    let [first, last] = [cells.length, -1];
    for (let cell = 0; cell < cells.length; cell++) {
      const state = cells[cell]!;
      if (state === shown[cell]) continue;
      pixels[cell] = this.colours[state]!;
      if (cell < first) first = cell;
      last = cell;
    }
    if (last < 0) return;
    const { columns, size } = this.shape;
    const [top, rows] = [Math.floor(first / columns), Math.floor(last / columns) - Math.floor(first / columns) + 1];
    this.brush.putImageData(this.image, 0, 0, 0, top, columns, rows);
    ctx.imageSmoothingEnabled = false;
    ctx.clearRect(0, top * size, columns * size, rows * size);
    ctx.drawImage(this.small, 0, top, columns, rows, 0, top * size, columns * size, rows * size);
  }

  private colour(fill: string, alpha: number): number {
    const { brush } = this;
    brush.clearRect(0, 0, 1, 1);
    brush.globalAlpha = alpha;
    brush.fillStyle = fill;
    brush.fillRect(0, 0, 1, 1);
    return new Uint32Array(brush.getImageData(0, 0, 1, 1).data.buffer)[0]!;
  }
}
