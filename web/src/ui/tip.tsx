/** What is said of the thing under the pointer: one layer for the whole page, so that nothing else is drawn anew for it. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";

export interface Tip {
  x: number;
  y: number;
  text: string;
}
export const tip = signal<Tip | null>(null);

export function TipLayer(): JSX.Element | null {
  const shown = tip.value;
  if (!shown) return null;
  return (
    <div class="tip" style={{ left: `${Math.min(shown.x + 14, innerWidth - 330)}px`, top: `${Math.min(shown.y + 14, innerHeight - 80)}px` }}>
      {shown.text}
    </div>
  );
}
