/** The KV block map: every block a cell, as the engine's pool has it. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { about, withModel } from "../../about";
import { get } from "../../api";
import { count, percent } from "../../format";
import { bytesOf, type Pool } from "../../live";
import { Canvas, type Pen } from "../../ui/draw";
import { Stat, Stats } from "../../ui/kit";

const [HELD, SHARED, CACHED, PINNED, HELD_PINNED] = [1, 2, 3, 4, 5];
const NAMES = ["free", "held", "held and shared", "cached", "pinned", "held and pinned"];

const quoted = (text: string) => `“${text.replaceAll("\n", "⏎").slice(0, 90)} …”`;

/** Cells smaller than this are painted as pixels: a pool may have a hundred thousand blocks. */
const TINY = 6;

interface BlockFacts {
  requests: { request_id: number; num_prompt: number; phase: string }[];
  prefix: { num_blocks: number; num_references: number; text: string } | null;
}

/** Who holds a block and what it belongs to: asked of the server for the one that is pointed at. */
function useBlock(): [(block: number) => BlockFacts | null, (block: number) => void] {
  const [known, setKnown] = useState<{ block: number; facts: BlockFacts } | null>(null);
  const asked = useRef({ block: -1, at: 0 });
  const ask = (block: number) => {
    const now = performance.now();
    if (asked.current.block === block && now - asked.current.at < 1000) return;
    asked.current = { block, at: now };
    get<BlockFacts>(withModel(`/app/v1/blocks/${block}`)).then(
      (facts) => setKnown({ block, facts }),
      () => undefined, // the tip says what the map knows
    );
  };
  return [(block) => (known?.block === block ? known.facts : null), ask];
}

export function KvMap({ pool }: { pool: Pool }): JSX.Element {
  const cells = useMemo(() => bytesOf(pool.states), [pool.states]);
  const totals = useMemo(() => cells.reduce((sums, state) => ((sums[state]! += 1), sums), [0, 0, 0, 0, 0, 0]), [cells]);
  const [factsOf, ask] = useBlock();
  const shape = (width: number) => {
    const size = Math.max(Math.min(Math.floor(Math.sqrt((width * 190) / Math.max(cells.length, 1))), 16), 2);
    return { size, columns: Math.max(Math.floor(width / size), 1) };
  };
  const draw = (pen: Pen) => {
    const { size, columns } = shape(pen.width);
    const { c } = pen;
    const fills = [c.sunken, c.decode, c.cached, c.cached, c.draft, c.draft];
    if (size < TINY) paint(pen, cells, fills, size, columns);
    else boxes(pen, cells, fills, size, columns);
  };
  const tip = (x: number, y: number, width: number) => {
    const { size, columns } = shape(width);
    const column = Math.floor(x / size);
    const block = column >= columns ? -1 : Math.floor(y / size) * columns + column;
    if (block < 0 || block >= cells.length) return null;
    if (cells[block]) ask(block);
    const facts = factsOf(block);
    const who = facts?.requests.map((one) => `\nrequest ${one.request_id}, ${one.phase}, ${count(one.num_prompt)} prompt tokens`).join("") ?? "";
    const begins = facts?.prefix ? `\nprefix of ${count(facts.prefix.num_blocks)} blocks: ${quoted(facts.prefix.text)}` : "";
    return `block ${block}: ${NAMES[cells[block]!]}${who}${begins}`;
  };
  const held = totals[HELD]! + totals[SHARED]! + totals[HELD_PINNED]!;
  const pinned = totals[PINNED]! + totals[HELD_PINNED]!;
  const size = about.value?.block_size ?? 16;
  return (
    <div class="stack">
      <Canvas height={200} label={`${count(pool.num_blocks)} blocks: ${held} held, ${totals[CACHED]} cached, ${pinned} pinned, ${totals[0]} free`} draw={draw} tip={tip} />
      <Stats>
        <Stat label="held" name="kv-held" value={count(held)} note={percent(held / pool.num_blocks)} />
        <Stat label="shared" name="kv-shared" value={count(totals[SHARED]!)} note="more than one holder" />
        <Stat label="cached" name="kv-cached" value={count(totals[CACHED]!)} note={`${count(totals[CACHED]! * size)} tokens`} />
        <Stat label="pinned" name="kv-pinned" value={count(pinned)} note={totals[HELD_PINNED] ? `${count(totals[HELD_PINNED])} of them held` : "kept for a while"} />
        <Stat label="free" name="kv-free" value={count(totals[0]!)} note={`${count(pool.num_evictions)} evictions`} />
      </Stats>
      {pool.prefixes.length > 0 && (
        <details class="more">
          <summary>Cached prefixes, the most used first</summary>
          <ul class="plain small">
            {pool.prefixes.slice(0, 6).map((one) => (
              <li key={one.first_block}>
                <b>{count(one.num_blocks)} blocks</b> begin with block {one.first_block}, {count(one.num_references)} references <span class="faint mono">{quoted(one.text ?? "")}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function boxes({ ctx, c }: Pen, cells: Uint8Array, fills: string[], size: number, columns: number): void {
  for (let state = 0; state < fills.length; state++) {
    ctx.fillStyle = fills[state]!;
    ctx.globalAlpha = state === CACHED ? 0.45 : 1;
    for (let block = 0; block < cells.length; block++) {
      if (cells[block] !== state) continue;
      const [x, y] = [(block % columns) * size, Math.floor(block / columns) * size];
      ctx.fillRect(x, y, size - 1, size - 1);
      if ((state === SHARED || state === HELD_PINNED) && size > 6) {
        ctx.fillStyle = c.decode;
        ctx.fillRect(x + 1, y + 1, (size - 1) / 2.4, (size - 1) / 2.4);
        ctx.fillStyle = fills[state]!;
      }
    }
  }
  ctx.globalAlpha = 1;
}

/** A pixel a block, made larger in one go. */
function paint({ ctx }: Pen, cells: Uint8Array, fills: string[], size: number, columns: number): void {
  const rows = Math.max(Math.ceil(cells.length / columns), 1);
  const small = new OffscreenCanvas(columns, rows);
  const brush = small.getContext("2d", { willReadFrequently: true })!;
  const colours = fills.map((fill, state) => {
    brush.clearRect(0, 0, 1, 1);
    brush.globalAlpha = state === CACHED ? 0.45 : 1;
    brush.fillStyle = fill;
    brush.fillRect(0, 0, 1, 1);
    return new Uint32Array(brush.getImageData(0, 0, 1, 1).data.buffer)[0]!;
  });
  const image = brush.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let block = 0; block < cells.length; block++) pixels[block] = colours[cells[block]!]!;
  brush.putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(small, 0, 0, columns * size, rows * size);
}
