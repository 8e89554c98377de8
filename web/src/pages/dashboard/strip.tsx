/** The batch strip: one bar a step. */
import type { JSX } from "preact";
import { count, percent, seconds } from "../../format";
import type { StepRow } from "../../live";
import { Boxes, Canvas, type Pen, words } from "../../ui/draw";

const BAR = 6;
const HEIGHT = 150;
const FOOT = 34;

export function Strip({ steps, budget }: { steps: StepRow[]; budget: number }): JSX.Element {
  const fitting = (width: number) => steps.slice(-Math.max(Math.floor(width / BAR), 1));
  const tip = (x: number, _: number, width: number): string | null => {
    const step = fitting(width)[Math.floor(x / BAR)];
    if (!step) return null;
    const [, duration, prompt, decoding, drafts, accepted] = step;
    const used = budget ? `\nbudget used ${percent((prompt + decoding + drafts) / budget)} of ${count(budget)}` : "";
    return `${seconds(duration)}\n${count(prompt)} prompt tokens, ${count(decoding)} decoding${drafts ? `\n${drafts} drafts, ${accepted} accepted` : ""}${used}`;
  };
  const draw = (pen: Pen) => {
    const rows = fitting(pen.width);
    const { c } = pen;
    const most = rows.reduce((longest, row) => Math.max(longest, row[1]), 1e-4);
    if (!rows.length) words(pen, "no steps yet: send a request", pen.width / 2, HEIGHT / 2, c.muted, "center", 13);
    const bars = new Boxes();
    const [foot, width] = [HEIGHT - FOOT, BAR - 1.5];
    rows.forEach(([, duration, prompt, decoding, drafts, accepted], index) => {
      const height = ((foot - 14) * duration) / most;
      const total = prompt + decoding + drafts || 1;
      const x = index * BAR;
      let y = foot;
      for (const [tokens, colour] of [[decoding, c.decode], [drafts, c.draft], [prompt, c.prompt]] as const) {
        const part = (height * tokens) / total;
        bars.add(colour, x, y - part, width, part);
        y -= part;
      }
      const used = budget ? 10 * Math.min(total / budget, 1) : 0;
      bars.add(c.sunken, x, foot + 4, width, 10 - used);
      bars.add(prompt ? c.prompt : c.decode, x, foot + 14 - used, width, used);
      if (accepted) bars.add(c.draft, x, foot + 17, width, 3);
    });
    bars.draw(pen);
    words(pen, `${seconds(most)}`, 0, 7, c.muted, "left", 11);
    words(pen, budget ? "share of the token budget" : "", 0, HEIGHT - 6, c.muted, "left", 11);
    words(pen, "latest", pen.width, HEIGHT - 6, c.muted, "right", 11);
  };
  return <Canvas height={HEIGHT} label={`The last ${steps.length} steps`} draw={draw} stamp={steps} tip={tip} />;
}
