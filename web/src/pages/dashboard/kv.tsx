/** The KV block map: every block a cell, as the engine's pool has it. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { about } from "../../about";
import { count, percent } from "../../format";
import { bytesOf, type OpenRow, type Pool } from "../../live";
import { Canvas, type Pen } from "../../ui/draw";
import { Stat, Stats } from "../../ui/kit";

const [HELD, SHARED, CACHED, PINNED, HELD_PINNED] = [1, 2, 3, 4, 5];
const NAMES = ["free", "held", "held and shared", "cached", "pinned", "held and pinned"];

const quoted = (text: string) => `“${text.replaceAll("\n", "⏎").slice(0, 90)} …”`;

export function KvMap({ pool, requests }: { pool: Pool; requests: OpenRow[] }): JSX.Element {
  const cells = useMemo(() => bytesOf(pool.states), [pool.states]);
  const prefixes = useMemo(() => bytesOf(pool.prefix_of), [pool.prefix_of]);
  const totals = useMemo(() => cells.reduce((sums, state) => ((sums[state]! += 1), sums), [0, 0, 0, 0, 0, 0]), [cells]);
  const holders = useMemo(() => {
    const found = new Map<number, number[]>();
    for (const [id, blocks] of pool.holders) for (const block of blocks) found.set(block, [...(found.get(block) ?? []), id]);
    return found;
  }, [pool.holders]);
  const shape = (width: number) => {
    const size = Math.max(Math.min(Math.floor(Math.sqrt((width * 190) / Math.max(cells.length, 1))), 16), 2);
    return { size, columns: Math.max(Math.floor(width / size), 1) };
  };
  const draw = (pen: Pen) => {
    const { size, columns } = shape(pen.width);
    const { c, ctx } = pen;
    const fills = [c.sunken, c.decode, c.cached, c.cached, c.draft, c.draft];
    const gap = size > 5 ? 1 : 0.4;
    for (let state = 0; state < fills.length; state++) {
      ctx.fillStyle = fills[state]!;
      ctx.globalAlpha = state === CACHED ? 0.45 : 1;
      for (let block = 0; block < cells.length; block++) {
        if (cells[block] !== state) continue;
        const [x, y] = [(block % columns) * size, Math.floor(block / columns) * size];
        ctx.fillRect(x, y, size - gap, size - gap);
        if ((state === SHARED || state === HELD_PINNED) && size > 6) {
          ctx.fillStyle = c.decode;
          ctx.fillRect(x + 1, y + 1, (size - gap) / 2.4, (size - gap) / 2.4);
          ctx.fillStyle = fills[state]!;
        }
      }
    }
    ctx.globalAlpha = 1;
  };
  const tip = (x: number, y: number, width: number) => {
    const { size, columns } = shape(width);
    const column = Math.floor(x / size);
    const block = column >= columns ? -1 : Math.floor(y / size) * columns + column;
    if (block < 0 || block >= cells.length) return null;
    const who = holders.get(block)?.map((id) => {
      const row = requests.find((one) => one.request_id === id);
      return `request ${id}${row ? `, ${row.phase}, ${count(row.num_prompt)} prompt tokens` : ""}`;
    });
    const prefix = pool.prefixes[prefixes[block] ?? 255];
    const begins = prefix ? `\nprefix of ${count(prefix.num_blocks)} blocks: ${quoted(prefix.text ?? "")}` : "";
    return `block ${block}: ${NAMES[cells[block]!]}${who ? `\n${who.join("\n")}` : ""}${begins}`;
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
