/** 5: how long bytes take from each level of memory. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { card } from "../../data/cards";
import { bytes, seconds, significant } from "../../format";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { useFrames, useKept } from "../../ui/hooks";
import { Card, Select, Slider, Table } from "../../ui/kit";
import { Frame } from "./frame";

/** Level, bytes it holds, bytes a second. */
type Level = readonly [string, number, number];
const DEVICES: Record<string, readonly Level[]> = {
  "h100-sxm": [["shared memory", 33e6, 33e12], ["L2", 50e6, 12e12], ["HBM", 80e9, 3.35e12], ["host", 1e12, 64e9], ["NVMe", 8e12, 7e9]],
  "a100-80": [["shared memory", 17.7e6, 19.5e12], ["L2", 40e6, 5e12], ["HBM", 80e9, 2.039e12], ["host", 1e12, 32e9], ["NVMe", 8e12, 7e9]],
};
const DEFAULTS = { device: "h100-sxm", megabytes: 1000 };

export function Hierarchy(): JSX.Element {
  const [state, set] = useKept(DEFAULTS);
  const [time, setTime] = useState(0);
  const levels = DEVICES[state.device] ?? DEVICES["h100-sxm"]!;
  const size = state.megabytes * 1e6;
  useFrames(true, (passed) => setTime((now) => now + passed));
  const slowest = size / levels.at(-1)![2];
  const draw = (pen: Pen) => {
    const { c, width, height } = pen;
    const colours = [c.decode, c.cached, c.draft, c.prompt, c.bad];
    levels.forEach(([name, capacity, rate], index) => {
      const inset = (levels.length - 1 - index) * Math.min(width, 620) * 0.075;
      const top = (levels.length - 1 - index) * 26;
      pen.ctx.strokeStyle = colours[index]!;
      pen.ctx.lineWidth = Math.max(1, 1.4 * Math.log10(rate / 1e9));
      pen.ctx.strokeRect(inset + 4, top + 4, width - 2 * inset - 8, height - 2 * top - 8);
      words(pen, `${name}  ${bytes(capacity)}  ${bytes(rate)}/s`, inset + 14, top + 19, c.text, "left", 12);
      // A dot crosses in its own time; the slowest takes eight seconds, the others on a log scale.
      const period = 0.25 + 7.75 * (Math.log10((size / rate) / (size / levels[0]![2])) / Math.log10(slowest / (size / levels[0]![2])));
      const share = (time % period) / period;
      box(pen, inset + 10 + (width - 2 * inset - 24) * share, height - top - 17, 8, 8, colours[index]!, 4);
    });
  };
  return (
    <Frame
      card={card("hierarchy")}
      state={state}
      controls={
        <>
          <Select label="Device" value={state.device} options={Object.keys(DEVICES)} onChange={(device) => set({ device })} />
          <Slider label="Bytes, MB" value={state.megabytes} min={1} max={200_000} log onChange={(megabytes) => set({ megabytes })} />
        </>
      }
    >
      <Card title="Nested" about="Each level holds the ones inside it; the wider a border, the more passes it a second. Dots cross in times on a log scale.">
        <Canvas height={290} label="Levels of memory" draw={draw} />
      </Card>
      <Card title={`${bytes(size)} once over`}>
        <Table
          label="Times by level"
          columns={[["level", ""], ["holds", "n"], ["bandwidth", "n"], ["takes", "n"], ["against the level inside", "n"]]}
          rows={levels.map(([name, capacity, rate], index) => [name, bytes(capacity), `${bytes(rate)}/s`, <span key={name} data-figure={name}>{seconds(size / rate)}</span>, index ? `${significant(levels[index - 1]![2] / rate, 2)} × slower` : "–"])}
        />
        <p class="small muted">Peak figures of vendors' data sheets; what a level holds limits what can be kept there, not what can be read through it.</p>
      </Card>
    </Frame>
  );
}
