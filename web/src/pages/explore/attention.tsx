/** 9: exact attention, tile by tile. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { card } from "../../data/cards";
import { bytes, count, significant } from "../../format";
import { calculate } from "../../tools";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { useAsked, useFrames, useKept } from "../../ui/hooks";
import { Card, Legend, Note, Slider, Stat, Stats } from "../../ui/kit";
import { Frame } from "./frame";

const DEFAULTS = { tokens: 2048, tile: 256, dim: 128 };
const SMALL = 48;

/** One query over all keys, whole and tile by tile: the same numbers, and what is carried from tile to tile. */
export function demonstrate(tile: number): { states: { max: number; sum: number; output: number }[]; difference: number } {
  const random = (seed: number) => {
    const x = Math.sin(seed * 12.9898) * 43758.5453;
    return x - Math.floor(x);
  };
  const scores = Array.from({ length: SMALL }, (_, index) => 6 * random(index + 1) - 3);
  const values = Array.from({ length: SMALL }, (_, index) => 2 * random(index + 101) - 1);
  const top = Math.max(...scores);
  const weights = scores.map((one) => Math.exp(one - top));
  const plain = weights.reduce((sum, one, index) => sum + one * values[index]!, 0) / weights.reduce((sum, one) => sum + one, 0);
  let [max, sum, output] = [-Infinity, 0, 0];
  const states = [];
  for (let start = 0; start < SMALL; start += tile) {
    const part = scores.slice(start, start + tile);
    const next = Math.max(max, ...part);
    const scale = Math.exp(max - next);
    const shares = part.map((one) => Math.exp(one - next));
    sum = sum * scale + shares.reduce((total, one) => total + one, 0);
    output = output * scale + shares.reduce((total, one, index) => total + one * values[start + index]!, 0);
    max = next;
    states.push({ max, sum, output: output / sum });
  }
  return { states, difference: Math.abs(output / sum - plain) };
}

export function Attention(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [time, setTime] = useState(0);
  const asked = useAsked((signal) => calculate("attention", { tokens: state.tokens, tile: state.tile, head_dim: state.dim }, signal), state);
  useFrames(true, (passed) => setTime((now) => now + passed));
  const tiles = Math.min(Math.ceil(state.tokens / state.tile), 24);
  const shown = useMemo(() => demonstrate(Math.max(Math.round((SMALL * state.tile) / state.tokens), 4)), [state.tile, state.tokens]);
  const at = Math.floor((time * 6) % (tiles * tiles + 8));
  const draw = (pen: Pen) => {
    const { c, width, height } = pen;
    const size = Math.min((width - 60) / 2, height - 40);
    const cell = size / tiles;
    for (let row = 0; row < tiles; row++) {
      for (let column = 0; column < tiles; column++) {
        const index = row * tiles + column;
        box(pen, column * cell, 24 + row * cell, cell - 0.6, cell - 0.6, index <= at ? c.bad : c.sunken, 1);
        const right = width - size;
        const isNow = index === Math.min(at, tiles * tiles - 1);
        box(pen, right + column * cell, 24 + row * cell, cell - 0.6, cell - 0.6, isNow ? c.decode : index < at ? c.line : c.sunken, 1);
      }
    }
    words(pen, "plain: every score to memory and back", 0, 10, c.text);
    words(pen, "tiled: one tile at a time, on chip", width - size, 10, c.text);
  };
  const values = asked.value?.values;
  const step = shown.states[Math.min(Math.floor((at % tiles) * (shown.states.length / tiles)), shown.states.length - 1)]!;
  return (
    <Frame
      card={card("attention")}
      state={state}
      command={`penstock calc attention --tokens ${state.tokens} tile=${state.tile} head-dim=${state.dim}`}
      controls={
        <>
          <Slider label="Tokens N" value={state.tokens} min={256} max={131_072} log onChange={(tokens) => set({ tokens })} />
          <Slider label="Tile" value={state.tile} min={16} max={512} step={16} onChange={(tile) => set({ tile })} />
          <Slider label="Head size d" value={state.dim} min={32} max={256} step={32} onChange={(dim) => set({ dim })} />
        </>
      }
    >
      {asked.fault && <Note kind="bad">{asked.fault}</Note>}
      <Card title="The score matrix" aside={<Legend items={[["bad", "written to memory"], ["decode", "on chip"], ["idle", "done, nothing kept"]]} />}>
        <Canvas height={300} label="Plain and tiled attention" draw={draw} />
      </Card>
      <Stats>
        <Stat label="plain" name="plain" value={bytes(values?.["plain_bytes"] ?? 0)} note="a head" />
        <Stat label="tiled" name="tiled" value={bytes(values?.["tiled_bytes"] ?? 0)} note="a head" />
        <Stat label="less traffic" value={`${significant(values?.["saving"] ?? 0)} ×`} kind={(values?.["saving"] ?? 0) > 1 ? "good" : "bad"} />
        <Stat label="scores never stored" value={count(state.tokens * state.tokens)} />
      </Stats>
      <Card title="What is carried from tile to tile" about="One query over 48 keys, computed here both ways.">
        <Stats>
          <Stat label="running maximum" value={significant(step.max)} />
          <Stat label="running sum" value={significant(step.sum)} />
          <Stat label="output so far" value={significant(step.output)} />
          <Stat label="largest difference" name="difference" value={shown.difference === 0 ? "0" : shown.difference.toExponential(1)} note="to plain softmax, 64-bit" kind="good" />
        </Stats>
      </Card>
    </Frame>
  );
}
