/** The KV block map: every block a cell, as the engine's pool has it. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { about } from "../../about";
import { get, withModel } from "../../api";
import { bytes, count, percent } from "../../format";
import { bytesOf, type Pool, type Tiers } from "../../live";
import { Canvas, type Pen } from "../../ui/draw";
import { Stat, Stats } from "../../ui/kit";
import { BlockPainter, CACHED, HELD, HELD_PINNED, MAP_HEIGHT, PINNED, shapeOf, SHARED } from "./painter";

const NAMES = ["free", "held", "held and shared", "cached", "pinned", "held and pinned"];

const quoted = (text: string) => `“${text.replaceAll("\n", "⏎").slice(0, 90)} …”`;

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

/** How many blocks are in each state. */
function counted(cells: Uint8Array): number[] {
  const sums = new Array<number>(NAMES.length).fill(0);
  for (const state of cells) sums[state]! += 1;
  return sums;
}

/** Blocks that lie beyond the device. */
function TierStats({ tiers }: { tiers: Tiers }): JSX.Element {
  return (
    <Stats>
      <Stat label="host memory" name="tier-host" value={bytes(tiers.host_bytes)} note={`${count(tiers.stored_blocks)} blocks stored`} />
      <Stat label="disk" name="tier-disk" value={bytes(tiers.disk_bytes)} note={tiers.faults ? `${count(tiers.faults)} faults` : "no faults"} />
      <Stat label="came back" name="tier-loaded" value={count(tiers.loaded_blocks)} note={`${count(tiers.declined_blocks)} computed sooner, ${count(tiers.swapped_blocks)} swapped`} />
    </Stats>
  );
}

export function KvMap({ pool, tiers = null }: { pool: Pool; tiers?: Tiers | null }): JSX.Element {
  const cells = useMemo(() => bytesOf(pool.states), [pool.states]);
  const totals = useMemo(() => counted(cells), [cells]);
  const painter = useMemo(() => new BlockPainter(), []);
  const [factsOf, ask] = useBlock();
  const draw = (pen: Pen) => painter.draw(pen, cells);
  const tip = (x: number, y: number, width: number) => {
    const { size, columns, each } = shapeOf(cells.length, width);
    const column = Math.floor(x / size);
    const block = column >= columns ? -1 : (Math.floor(y / size) * columns + column) * each;
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
      <Canvas height={MAP_HEIGHT + 10} label={`${count(pool.num_blocks)} blocks: ${held} held, ${totals[CACHED]} cached, ${pinned} pinned, ${totals[0]} free`} draw={draw} stamp={pool.states} isKept tip={tip} />
      <Stats>
        <Stat label="held" name="kv-held" value={count(held)} note={percent(held / pool.num_blocks)} />
        <Stat label="shared" name="kv-shared" value={count(totals[SHARED]!)} note="more than one holder" />
        <Stat label="cached" name="kv-cached" value={count(totals[CACHED]!)} note={`${count(totals[CACHED]! * size)} tokens`} />
        <Stat label="pinned" name="kv-pinned" value={count(pinned)} note={totals[HELD_PINNED] ? `${count(totals[HELD_PINNED]!)} of them held` : "kept for a while"} />
        <Stat label="free" name="kv-free" value={count(totals[0]!)} note={`${count(pool.num_evictions)} evictions`} />
      </Stats>
      {tiers && <TierStats tiers={tiers} />}
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
