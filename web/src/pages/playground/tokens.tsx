/** An answer token by token: how probable each was, what else could have been, and a way to go there instead. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { percent } from "../../format";
import { Legend } from "../../ui/kit";
import type { Rival, Token, Turn } from "./tree";

const shown = (token: string): string => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";

export function Tokens({ turn, onBranch }: { turn: Turn; onBranch: (index: number, rival: Rival) => void }): JSX.Element {
  const [at, setAt] = useState<number | null>(null);
  const token = at === null ? null : (turn.tokens[at] ?? null);
  return (
    <div class="stack">
      <div class="tokens" role="group" aria-label="Tokens of the answer; choose one to see its rivals">
        {turn.given > 0 && <span class="token given">{turn.text.slice(0, turn.given)}</span>}
        {turn.tokens.map((one, index) => (
          <button
            key={index}
            type="button"
            class={`token heat${heat(one)} ${one.draft ? "draft" : ""} ${index === at ? "at" : ""}`}
            title={`${percent(Math.exp(one.logprob))}${one.draft ? ", an accepted draft" : ""}`}
            aria-pressed={index === at}
            onMouseEnter={() => setAt(index)}
            onFocus={() => setAt(index)}
            onClick={() => setAt(index)}
          >
            {shown(one.token)}
          </button>
        ))}
      </div>
      {token && at !== null ? <Rivals token={token} onPick={(rival) => onBranch(at, rival)} /> : <p class="small muted">Point at a token to see what else the model could have said; click a rival to go on from there.</p>}
      <Legend
        items={[
          ["decode", "sure (≥ 90 %)"],
          ["prompt", "wavering"],
          ["bad", "unlikely (< 10 %)"],
          ["draft", "accepted draft"],
        ]}
      />
    </div>
  );
}

function heat(token: Token): number {
  const p = Math.exp(token.logprob);
  return p >= 0.9 ? 0 : p >= 0.6 ? 1 : p >= 0.3 ? 2 : p >= 0.1 ? 3 : 4;
}

function Rivals({ token, onPick }: { token: Token; onPick: (rival: Rival) => void }): JSX.Element {
  const most = Math.max(...token.top.map((one) => Math.exp(one.logprob)), Math.exp(token.logprob), 1e-9);
  return (
    <div class="rivals" role="group" aria-label="Alternatives">
      {token.top.map((one, number) => {
        const p = Math.exp(one.logprob);
        const isChosen = one.id === token.id;
        return (
          <button key={number} type="button" class={`rival ${isChosen ? "chosen" : ""}`} disabled={isChosen} title={`token ${one.id}`} onClick={() => onPick(one)}>
            <span class="mono">{shown(one.token)}</span>
            <span class="track">
              <i style={{ width: `${(100 * p) / most}%` }} />
            </span>
            <span class="mono right">{percent(p)}</span>
          </button>
        );
      })}
    </div>
  );
}
