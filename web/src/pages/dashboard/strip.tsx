/** The batch strip: one bar a step. */
import type { JSX } from "preact";
import { count, percent, seconds } from "../../format";
import type { StepRow } from "../../live";
import { box, Canvas, type Pen, words } from "../../ui/draw";

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
    const most = Math.max(...rows.map((row) => row[1]), 1e-4);
    if (!rows.length) words(pen, "no steps yet: send a request", pen.width / 2, HEIGHT / 2, c.muted, "center", 13);
    rows.forEach(([, duration, prompt, decoding, drafts, accepted], index) => {
      const height = ((HEIGHT - FOOT - 14) * duration) / most;
      const total = prompt + decoding + drafts || 1;
      let y = HEIGHT - FOOT;
      for (const [tokens, colour] of [[decoding, c.decode], [drafts, c.draft], [prompt, c.prompt]] as const) {
        const part = (height * tokens) / total;
        box(pen, index * BAR, y - part, BAR - 1.5, part, colour, 1);
        y -= part;
      }
      const used = budget ? Math.min(total / budget, 1) : 0;
      box(pen, index * BAR, HEIGHT - FOOT + 4, BAR - 1.5, 10, c.sunken, 1);
      box(pen, index * BAR, HEIGHT - FOOT + 14 - 10 * used, BAR - 1.5, 10 * used, prompt ? c.prompt : c.decode, 1);
      if (accepted) box(pen, index * BAR, HEIGHT - FOOT + 17, BAR - 1.5, 3, c.draft, 1);
    });
    words(pen, `${seconds(most)}`, 0, 7, c.muted, "left", 11);
    words(pen, budget ? "share of the token budget" : "", 0, HEIGHT - 6, c.muted, "left", 11);
    words(pen, "latest", pen.width, HEIGHT - 6, c.muted, "right", 11);
  };
  return <Canvas height={HEIGHT} label={`The last ${steps.length} steps`} draw={draw} tip={tip} />;
}
