/** Two settings on one prompt, side by side. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { Button, Card, SourceBadge, TextField } from "../../ui/kit";
import { Answer } from "../../ui/text";
import { Panel } from "./panel";
import { type Settings, streamed } from "./settings";
import { answer } from "./stream";
import { Tree, type Turn } from "./tree";
import { Times } from "./turn";

export function Compare({ settings }: { settings: Settings }): JSX.Element {
  const [prompt, setPrompt] = useState("Write the first two sentences of a story about a water wheel.");
  const [sides, setSides] = useState<[Settings, Settings]>([
    { ...settings, temperature: 0 },
    { ...settings, temperature: 1.2 },
  ]);
  const [turns, setTurns] = useState<Turn[]>([]);
  const [isBusy, setBusy] = useState(false);
  const [, setCount] = useState(0);
  const abort = useRef<AbortController | null>(null);
  const run = async () => {
    const tree = new Tree();
    const made = sides.map(() => tree.add("assistant", "", 0));
    setTurns(made);
    setBusy(true);
    abort.current = new AbortController();
    const { signal } = abort.current;
    const ask = (turn: Turn, number: number) =>
      answer(turn, streamed({ ...sides[number]!, logprobs: false }, [{ role: "user", content: prompt }]), signal, () => setCount((value) => value + 1));
    await Promise.all(made.map(ask));
    setBusy(false);
  };
  return (
    <div class="stack">
      <Card title="A and B" about="One prompt, two settings, sent in the same moment." aside={<SourceBadge source="live" />}>
        <div class="fields">
          <TextField label="Prompt" value={prompt} rows={2} onChange={setPrompt} />
          <div class="row">
            {isBusy ? (
              <Button kind="danger" onClick={() => abort.current?.abort()}>
                Stop
              </Button>
            ) : (
              <Button kind="primary" onClick={() => void run()}>
                Ask both
              </Button>
            )}
          </div>
        </div>
      </Card>
      <div class="grid">
        {sides.map((side, number) => (
          <Card key={number} class="c6" title={number ? "B" : "A"}>
            <div class="stack">
              <Panel brief value={side} onChange={(next) => setSides(number ? [sides[0], next] : [next, sides[1]])} />
              {turns[number] && (
                <article class="turn assistant" aria-label={`Answer ${number ? "B" : "A"}`}>
                  <Answer text={turns[number].text} streaming={turns[number].state === "streaming"} />
                  {turns[number].note && <p class="small muted">{turns[number].note}</p>}
                  {turns[number].ticks.length > 0 && <Times turn={turns[number]} />}
                </article>
              )}
            </div>
          </Card>
        ))}
      </div>
    </div>
  );
}
