/** One turn of the conversation, with its times and what can be done with it. */
import type { ComponentType, JSX } from "preact";
import { useState } from "preact/hooks";
import { count, ms, percent, significant } from "../../format";
import { Bar, Button, Note, TextField } from "../../ui/kit";
import { Answer } from "../../ui/text";
import type { Fall } from "../dashboard/waterfall";
import { fallOf, partsOf } from "./fall";
import { Tokens } from "./tokens";
import type { Rival, Turn } from "./tree";

export interface Deeds {
  edit: (turn: Turn, text: string) => void;
  again: (turn: Turn) => void;
  branch: (turn: Turn, index: number, rival: Rival) => void;
  results: (turn: Turn, results: [string, string][]) => void;
  choose: (turn: Turn, place: number) => void;
}

export function TurnView(props: { turn: Turn; place: number; of: number; deeds: Deeds; busy: boolean }): JSX.Element {
  const { turn, deeds } = props;
  const [editing, setEditing] = useState<string | null>(null);
  const [view, setView] = useState<"text" | "tokens">("text");
  const isUser = turn.role === "user";
  if (turn.role === "tool") return <ToolResults turn={turn} />;
  return (
    <article class={`turn ${turn.role}`} aria-label={isUser ? "You" : "Model"} aria-busy={turn.state === "streaming"}>
      <header>
        <strong>{isUser ? "You" : "Model"}</strong>
        {props.of > 1 && (
          <span class="branches">
            <Button kind="quiet s" disabled={props.place === 0} onClick={() => deeds.choose(turn, props.place - 1)} title="Earlier branch">
              ‹<span class="sr">Earlier branch</span>
            </Button>
            <span class="tiny muted">
              {props.place + 1} / {props.of}
            </span>
            <Button kind="quiet s" disabled={props.place === props.of - 1} onClick={() => deeds.choose(turn, props.place + 1)} title="Later branch">
              ›<span class="sr">Later branch</span>
            </Button>
          </span>
        )}
        <span class="grow" />
        {isUser && editing === null && (
          <Button kind="quiet s" onClick={() => setEditing(turn.text)} disabled={props.busy}>
            Edit
          </Button>
        )}
        {!isUser && turn.tokens.length > 0 && (
          <Button kind="quiet s" pressed={view === "tokens"} onClick={() => setView(view === "text" ? "tokens" : "text")}>
            Tokens
          </Button>
        )}
        {!isUser && (
          <Button kind="quiet s" onClick={() => deeds.again(turn)} disabled={props.busy}>
            Regenerate
          </Button>
        )}
      </header>
      {editing !== null ? (
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            deeds.edit(turn, editing);
            setEditing(null);
          }}
        >
          <textarea class="input" rows={3} aria-label="Edit the message" value={editing} onInput={(event) => setEditing(event.currentTarget.value)} />
          <div class="row">
            <Button kind="primary s" submit>
              Send as a branch
            </Button>
            <Button kind="quiet s" onClick={() => setEditing(null)}>
              Leave it
            </Button>
          </div>
        </form>
      ) : (
        <>
          {turn.reasoning && (
            <details class="reasoning">
              <summary>Reasoning</summary>
              <Answer text={turn.reasoning} />
            </details>
          )}
          {view === "tokens" && turn.tokens.length ? <Tokens turn={turn} onBranch={(index, rival) => deeds.branch(turn, index, rival)} /> : <Answer text={turn.text} streaming={turn.state === "streaming"} />}
          {turn.tools.map((call, number) => (
            <pre key={number} class="code" tabIndex={0}>
              {call.name}({call.arguments})
            </pre>
          ))}
          {turn.tools.length > 0 && turn.state === "done" && turn.children.length === 0 && <Answers turn={turn} busy={props.busy} onSend={(results) => deeds.results(turn, results)} />}
          {turn.state === "waiting" && <p class="small muted" role="status">{turn.note || "sent"}</p>}
          {turn.state === "waiting" && turn.share > 0 && <Bar share={turn.share} label="Done of what it waits for" plain />}
          {(turn.state === "failed" || turn.state === "stopped") && <Note kind={turn.state === "failed" ? "bad" : "warn"}>{turn.note}</Note>}
        </>
      )}
      {!isUser && turn.ticks.length > 0 && <Times turn={turn} />}
      {!isUser && turn.state === "done" && turn.usage?.timings && <Where turn={turn} />}
    </article>
  );
}

/** What the tools gave, typed by whoever tests them; it goes back to the model as the calls' results. */
function Answers({ turn, busy, onSend }: { turn: Turn; busy: boolean; onSend: (results: [string, string][]) => void }): JSX.Element {
  const [texts, setTexts] = useState(turn.tools.map(() => ""));
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        onSend(turn.tools.map((call, number) => [call.id, texts[number]!]));
      }}
    >
      {turn.tools.map((call, number) => (
        <TextField key={call.id} label={`Result of ${call.name}`} value={texts[number]!} rows={2} placeholder={'{"temperature": 21}'} onChange={(text) => setTexts(texts.map((before, place) => (place === number ? text : before)))} />
      ))}
      <div class="row">
        <Button kind="primary s" submit disabled={busy}>
          Send the result
        </Button>
      </div>
    </form>
  );
}

function ToolResults({ turn }: { turn: Turn }): JSX.Element {
  return (
    <article class="turn tool" aria-label="Tool">
      <header>
        <strong>Tool</strong>
      </header>
      {turn.results.map(([id, text]) => (
        <pre key={id} class="code" tabIndex={0}>
          {text || "(nothing)"}
        </pre>
      ))}
    </article>
  );
}

export function rate(turn: Turn): number {
  const spent = (turn.ticks.at(-1) ?? 0) - (turn.ticks[0] ?? 0);
  const made = turn.usage ? turn.usage.completion_tokens : turn.ticks.length;
  return spent > 0 ? (1000 * (made - 1)) / spent : 0;
}

export function Times({ turn }: { turn: Turn }): JSX.Element {
  const { usage } = turn;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const timings = usage?.timings;
  const [checked, accepted] = [timings?.["draft_tokens"] ?? 0, timings?.["accepted_draft_tokens"] ?? 0];
  const parts = partsOf(turn);
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const told = parts.map(([name, value]) => `${name} ${ms(value)}`);
  return (
    <footer class="times">
      {usage && (
        <span>
          prompt {count(usage.prompt_tokens)} {cached > 0 && <b class="cached">({count(cached)} cached)</b>}
        </span>
      )}
      {usage && <span>generated {count(usage.completion_tokens)}</span>}
      <span>TTFT {ms(turn.ttft_ms)}</span>
      <span>{significant(rate(turn))} tokens/s</span>
      {checked > 0 && <span class="draft">drafts accepted {percent(accepted / checked)}</span>}
      {turn.finish === "length" && <span class="warn">cut at max tokens</span>}
      <Spark ticks={turn.ticks} />
      {parts.length > 0 && (
        <span class="phases" title={told.join("\n")} role="img" aria-label={told.join(", ")}>
          {parts.map(([name, value]) => (
            <i key={name} class={name} style={{ width: `${(100 * value) / total}%` }} />
          ))}
        </span>
      )}
    </footer>
  );
}

/** The answer's waterfall; what draws it is fetched when somebody wants to see it. */
function Where({ turn }: { turn: Turn }): JSX.Element {
  const [View, setView] = useState<{ of: ComponentType<{ fall: Fall }> } | null>(null);
  const open = (event: Event) => {
    if ((event.currentTarget as HTMLDetailsElement).open && !View) void import("../dashboard/waterfall").then(({ FallView }) => setView({ of: FallView }));
  };
  return (
    <details class="where small" onToggle={open}>
      <summary>Where the time went</summary>
      {View && <View.of fall={fallOf(turn)} />}
    </details>
  );
}

/** Tokens a second over the answer, in a line. */
function Spark({ ticks }: { ticks: number[] }): JSX.Element | null {
  if (ticks.length < 8) return null;
  const bins = 24;
  const [first, last] = [ticks[0]!, ticks.at(-1)!];
  const counts = new Array<number>(bins).fill(0);
  for (const tick of ticks) counts[Math.min(Math.floor(((tick - first) / (last - first || 1)) * bins), bins - 1)]! += 1;
  const most = Math.max(...counts);
  const points = counts.map((value, index) => `${(index * 72) / (bins - 1)},${15 - (13 * value) / most}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 72 16" width="72" height="16" aria-hidden="true">
      <polyline points={points} fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
  );
}
