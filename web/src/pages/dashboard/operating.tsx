/** Where this server works: its present point, and what batches of other sizes would come to. */
import type { JSX } from "preact";
import { count, seconds } from "../../format";
import { live, useLive } from "../../live";
import { type Curve, Frontier, present } from "../../ui/frontier";
import { Card } from "../../ui/kit";

export function Operating(): JSX.Element {
  const now = (useLive(5) ?? live.peek())!;
  const points = now.queue.frontier.map(([size, tpot, tokens]) => ({ user: 1 / tpot, all: tokens, text: `${count(Math.round(size))} sequences, TPOT ${seconds(tpot)}` }));
  const largest = count(Math.round(now.queue.frontier.at(-1)?.[0] ?? 0));
  const curves: Curve[] = points.length ? [{ label: `batches of 1 to ${largest}, by the latest steps`, colour: "decode", points }] : [];
  const dots = present(now);
  return (
    <Card class="c6" title="Operating point" about="Tokens a second of all against those of each user: what its steps say of every batch, for requests like the last ones.">
      {curves.length + dots.length ? <Frontier label="Operating point" allLabel="tokens/s" curves={curves} dots={dots} /> : <p class="muted small">Needs some steps, and requests that ended.</p>}
    </Card>
  );
}
