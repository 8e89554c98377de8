/** 10: contiguous reservations against pages, padded batches against packed ones, and the engine's own map. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { chats, post, told } from "../../api";
import { card } from "../../data/cards";
import { count, percent } from "../../format";
import { live, useStream } from "../../live";
import { box, Canvas, hatch, type Pen, words } from "../../ui/draw";
import { useAsked, useKept } from "../../ui/hooks";
import { Button, Card, Check, Legend, Note, Slider, SourceBadge, Stat, Stats, Table } from "../../ui/kit";
import { KvMap } from "../dashboard/kv";
import { Frame } from "./frame";

const DEFAULTS = { sequences: 4, reserve: 2048, block: 16, share: true, finish: 0 };

interface Laid {
  num_blocks: number;
  block_size: number;
  states: number[];
  sequences: { length: number; blocks: number[] }[];
  contiguous: { start: number; used: number; reserved: number }[];
  contiguous_waste: number;
  paged_waste: number;
  /** Tokens computed of each sequence's prompt where a batch is a rectangle. */
  padded: number[];
  padded_waste: number;
  num_shared_tokens: number;
  contiguous_fit: number;
  paged_fit: number;
}

export function Blocks(): JSX.Element {
  useEffect(useStream, []);
  const [state, set] = useKept(DEFAULTS);
  const asked = useAsked((signal) => post<Laid>("/app/v1/blocks", { sequences: state.sequences, reserve: state.reserve, block: state.block, share: state.share, finish: Math.min(state.finish, state.sequences - 1) }, signal), state);
  const laid = asked.value;
  const now = live.value;
  return (
    <Frame
      card={card("blocks")}
      state={state}
      command={`penstock calc kv --model llama-3.1-8b --context ${state.reserve} used=300 block=${state.block}\npenstock simulate allocation=contiguous --max-context ${state.reserve} --rate 8\npenstock simulate padding=true --rate 8`}
      controls={
        <>
          <Slider label="Sequences" value={state.sequences} min={1} max={16} onChange={(sequences) => set({ sequences })} />
          <Slider label="Reserved each, tokens" value={state.reserve} min={256} max={8192} step={256} onChange={(reserve) => set({ reserve })} />
          <Slider label="Block, tokens" value={state.block} min={8} max={128} step={8} onChange={(block) => set({ block })} />
          <Slider label="Finished" value={state.finish} min={0} max={15} onChange={(finish) => set({ finish })} />
          <Check label="They share a beginning of 256 tokens" value={state.share} onChange={(share) => set({ share })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      {laid && (
        <>
          <div class="grid">
            <Card class="c6" title="Contiguous" about="Each sequence reserves its longest; a finished one leaves a hole.">
              <Canvas height={16 * 20 + 6} label={`Contiguous: ${percent(laid.contiguous_waste)} wasted`} draw={(pen) => strips(pen, laid)} />
            </Card>
            <Card class="c6" title="Paged" about="Blocks as they are needed, from a real pool; arrows go from a sequence's place to its block.">
              <Canvas height={16 * 20 + 6} label={`Paged: ${percent(laid.paged_waste)} wasted`} draw={(pen) => pages(pen, laid)} />
            </Card>
            <Card class="c12" title="Padded" about="One step of all these prompts as a rectangle: each is computed as long as the longest. Packed, one after another, none is.">
              <Canvas height={laid.padded.length * 20 + 6} label={`Padded: ${percent(laid.padded_waste)} of the computed tokens wasted`} draw={(pen) => rectangle(pen, laid)} />
            </Card>
          </div>
          <Legend items={[["decode", "used"], ["hatched", "reserved or padded, unused"], ["cached", "shared"], ["idle", "free"]]} />
          <Stats>
            <Stat label="waste, contiguous" name="contiguous-waste" value={percent(laid.contiguous_waste)} kind="bad" note="1 − used / held" />
            <Stat label="waste, paged" name="paged-waste" value={percent(laid.paged_waste)} kind="good" />
            <Stat label="waste, padded" name="padded-waste" value={percent(laid.padded_waste)} kind="bad" note="1 − asked / computed; packed: 0 %" />
            <Stat label="sequences that fit" value={`${count(laid.contiguous_fit)} → ${count(laid.paged_fit)}`} note="contiguous → paged" />
            <Stat label="shared" value={count(laid.num_shared_tokens)} unit="tokens" note="(references − 1) × block" />
          </Stats>
        </>
      )}
      {now?.kv && <LivePool sequences={state.sequences} share={state.share} />}
    </Frame>
  );
}

/** The engine's own map, with real sequences to fill it and their block tables. */
function LivePool({ sequences, share }: { sequences: number; share: boolean }): JSX.Element {
  const [abort, setAbort] = useState<AbortController | null>(null);
  const [fault, setFault] = useState("");
  const now = live.value!;
  useEffect(() => () => abort?.abort(), [abort]);
  const send = async () => {
    const controller = new AbortController();
    setAbort(controller);
    setFault("");
    const salt = `explore ${Math.random()}`;
    const beginning = "The water runs from the dam through the penstock to the turbine. ".repeat(20);
    const bodies = Array.from({ length: sequences }, (_, index) => ({
      messages: [{ role: "user", content: share ? `${beginning} ${index} and` : `${index} ${beginning} and` }],
      max_tokens: 400,
      ignore_eos: true,
      cache_salt: salt,
    }));
    try {
      for await (const news of chats(bodies, controller.signal)) if (news.end && news.end !== "done") setFault(news.end.message);
    } catch (problem) {
      if (!controller.signal.aborted) setFault(told(problem));
    }
    setAbort(null);
  };
  const shared = new Map<number, number>();
  for (const [, blocks] of now.kv!.holders) for (const block of blocks) shared.set(block, (shared.get(block) ?? 0) + 1);
  return (
    <Card title="The engine's own map, live" aside={<SourceBadge source="live" />}>
      <div class="stack">
        <div class="row">
          {abort ? (
            <Button kind="danger" onClick={() => abort.abort()}>
              Stop them
            </Button>
          ) : (
            <Button kind="primary" onClick={() => void send()}>
              Send {sequences} real sequences
            </Button>
          )}
          <span class="small muted">They write 400 tokens each{share ? " after one beginning" : ", each after a beginning of its own"}: watch their tables grow.</span>
        </div>
        {fault && <Note kind="bad">{fault}</Note>}
        <KvMap pool={now.kv!} />
        {now.kv!.holders.length > 0 && (
          <Table
            label="Block tables of running sequences"
            columns={[["request", ""], ["blocks", "n"], ["shared", "n"], ["block table, logical to physical", ""]]}
            rows={now.kv!.holders.slice(0, 16).map(([id, blocks]) => [
              `#${id}`,
              count(blocks.length),
              count(blocks.filter((block) => shared.get(block)! > 1).length),
              <span key="b" class="mono small">{blocks.slice(0, 24).join(" ")}{blocks.length > 24 ? ` … ${blocks.at(-1)}` : ""}</span>,
            ])}
          />
        )}
      </div>
    </Card>
  );
}

function strips(pen: Pen, laid: Laid): void {
  const { c, width } = pen;
  const total = laid.num_blocks * laid.block_size;
  const rows = 16;
  const perRow = total / rows;
  const each = (start: number, length: number, paint: (x: number, y: number, w: number) => void) => {
    let [at, left] = [start, length];
    while (left > 0) {
      const row = Math.floor(at / perRow);
      const inRow = Math.min(left, (row + 1) * perRow - at);
      paint(((at % perRow) / perRow) * width, row * 20 + 2, (inRow / perRow) * width);
      at += inRow;
      left -= inRow;
    }
  };
  for (let row = 0; row < rows; row++) box(pen, 0, row * 20 + 2, width, 15, c.sunken, 3);
  laid.contiguous.forEach((one, index) => {
    each(one.start, one.used, (x, y, w) => box(pen, x, y, w, 15, c.decode, 2));
    each(one.start + one.used, one.reserved - one.used, (x, y, w) => hatch(pen, x, y, w, 15, c.idle));
    words(pen, String(index + 1), ((one.start % perRow) / perRow) * width + 4, Math.floor(one.start / perRow) * 20 + 10, c.panel, "left", 11);
  });
}

function rectangle(pen: Pen, laid: Laid): void {
  const { c, width } = pen;
  const left = 74;
  const longest = Math.max(...laid.padded, 1);
  const wide = (tokens: number) => (tokens / longest) * (width - left);
  laid.sequences.forEach((one, index) => {
    const y = index * 20 + 2;
    words(pen, `seq ${index + 1}`, 0, y + 8, c.muted, "left", 11);
    box(pen, left, y, wide(one.length), 15, c.decode, 2);
    hatch(pen, left + wide(one.length), y, wide(laid.padded[index]! - one.length), 15, c.idle);
  });
}

function pages(pen: Pen, laid: Laid): void {
  const { c, width, ctx } = pen;
  const left = 74;
  const columns = Math.ceil(Math.sqrt((laid.num_blocks * (width - left)) / 320));
  const size = Math.min((width - left) / columns, 320 / Math.ceil(laid.num_blocks / columns));
  const place = (block: number) => [left + (block % columns) * size, Math.floor(block / columns) * size + 2] as const;
  laid.states.forEach((state, block) => {
    const [x, y] = place(block);
    box(pen, x, y, size - 1, size - 1, state === 0 ? c.sunken : state === 1 ? c.decode : c.cached, 1.5);
  });
  laid.sequences.forEach((one, index) => {
    const y = index * 20 + 10;
    words(pen, `seq ${index + 1}`, 0, y, c.muted, "left", 11);
    const last = one.blocks.at(-1);
    const first = one.blocks[0];
    for (const block of [first, last]) {
      if (block === undefined) continue;
      const [x, top] = place(block);
      ctx.strokeStyle = c.faint;
      ctx.globalAlpha = 0.5;
      ctx.beginPath();
      ctx.moveTo(38, y);
      ctx.bezierCurveTo(60, y, 50, top + size / 2, x + 1, top + size / 2);
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
    if (last !== undefined && one.length % laid.block_size) {
      const [x, top] = place(last);
      const used = (one.length % laid.block_size) / laid.block_size;
      box(pen, x + (size - 1) * used, top, (size - 1) * (1 - used), size - 1, c.sunken, 0);
      hatch(pen, x + (size - 1) * used, top, (size - 1) * (1 - used), size - 1, c.idle);
    }
  });
}
