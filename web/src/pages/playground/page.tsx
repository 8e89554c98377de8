/** The playground: talk to the model that is served, and see what it does. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { about } from "../../about";
import { naming, post } from "../../api";
import { count } from "../../format";
import { kept, put } from "../../router";
import { Bar, Button, Card, Command, Note, PageHead, Segments } from "../../ui/kit";
import { ModelPicker, Standing } from "../../ui/models";
import { Compare } from "./compare";
import { Copies } from "./copies";
import { Panel } from "./panel";
import { asCurl, asJavaScript, asPython, body, DEFAULTS, type Message, type Settings, SettingFault, streamed } from "./settings";
import { answer } from "./stream";
import { messages, Tree, type Turn } from "./tree";
import { type Deeds, TurnView } from "./turn";

const tree = new Tree();
const IDEAS = ["What is a penstock?", "Explain why decoding is memory-bound in two sentences.", "Write a haiku about water under pressure."];

type Mode = "chat" | "compare" | "copies";

export function Playground(): JSX.Element {
  const [mode, setMode] = useState<Mode>(kept({ mode: "chat" }).mode as Mode);
  const [settings, setSettings] = useState<Settings>(DEFAULTS);
  const change = (next: Mode) => {
    setMode(next);
    put("mode", next === "chat" ? "" : next);
  };
  return (
    <div class="page">
      <PageHead title="Playground" about={served()}>
        <Segments label="Mode" value={mode} options={[["chat", "Chat"], ["compare", "A / B"], ["copies", "k copies"]]} onChange={change} />
      </PageHead>
      {about.value && !about.value.can_generate && <Note kind="warn">This model makes vectors and generates no text; serve another one to talk to it.</Note>}
      {mode === "chat" && <Chat settings={settings} onSettings={setSettings} />}
      {mode === "compare" && <Compare settings={settings} />}
      {mode === "copies" && <Copies settings={settings} />}
    </div>
  );
}

function served(): string {
  const found = about.value;
  if (!found) return "Talk to the model that is being served.";
  if (!found.model) return "The model is being loaded; until it is there, requests are told to come back in a moment. Nothing you write is kept.";
  const context = found.max_context ? `, up to ${count(found.max_context)} tokens of context` : "";
  return `${found.model}${found.device ? ` on ${found.device}` : ""}${context}. Nothing you write is kept.`;
}

function Chat({ settings, onSettings }: { settings: Settings; onSettings: (next: Settings) => void }): JSX.Element {
  const [draft, setDraft] = useState("");
  const [busy, setBusy] = useState<AbortController | null>(null);
  const [fault, setFault] = useState("");
  const [exporting, setExporting] = useState<"" | "curl" | "python" | "js">("");
  const frame = useRef(0);
  const list = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLTextAreaElement>(null);
  tree.changed.value; // eslint-disable-line @typescript-eslint/no-unused-expressions
  const path = tree.path();

  const touched = () => {
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => tree.touch());
  };
  useEffect(() => {
    const element = list.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 160) element.scrollTop = element.scrollHeight;
  });
  useEffect(() => () => busy?.abort(), [busy]);

  const run = async (turn: Turn, what: Record<string, unknown>) => {
    const abort = new AbortController();
    setBusy(abort);
    await answer(turn, what, abort.signal, touched);
    tree.touch();
    setBusy(null);
    input.current?.focus();
  };
  const reply = (parent: number, history: Turn[]) => {
    try {
      setFault("");
      const asked = messages(history);
      const what = streamed(settings, asked);
      const turn = tree.add("assistant", "", parent);
      turn.asked = body(settings, asked)["messages"] as Message[];
      void run(turn, what);
    } catch (problem) {
      if (!(problem instanceof SettingFault)) throw problem;
      setFault(problem.message);
    }
  };
  const send = (text: string) => {
    if (!text.trim() || busy) return;
    const turn = tree.add("user", text.trim(), path.at(-1)?.id ?? 0);
    setDraft("");
    reply(turn.id, tree.path());
  };
  const deeds: Deeds = {
    edit: (turn, text) => {
      const made = tree.add("user", text, turn.parent);
      reply(made.id, [...tree.before(made.id), made]);
    },
    again: (turn) => reply(turn.parent, tree.before(turn.id)),
    branch: (turn, index, rival) => {
      const kept = turn.tokens.slice(0, index);
      const begun = turn.text.slice(0, turn.given) + kept.map((one) => one.token).join("") + rival.token;
      const made = tree.add("assistant", begun, turn.parent);
      made.given = begun.length;
      made.begun = [...turn.begun, ...kept.map((one) => one.id), rival.id];
      const history = messages(tree.before(turn.id));
      made.asked = body(settings, history)["messages"] as Message[];
      // The very tokens: the same text, made into tokens again, may be others.
      void run(made, { ...streamed(settings, history), continue_token_ids: made.begun });
    },
    results: (turn, results) => {
      const made = tree.add("tool", "", turn.id);
      made.results = results;
      reply(made.id, [...tree.before(made.id), made]);
    },
    choose: (turn, place) => tree.choose(turn, place),
  };
  return (
    <div class="chat-grid">
      <section class="chat card" aria-label="Conversation">
        <div class="turns" ref={list} tabIndex={0} role="log" aria-label="Turns">
          {path.length === 0 && (
            <div class="ideas">
              <h2>Ask something</h2>
              <div class="row">
                {IDEAS.map((idea) => (
                  <Button key={idea} kind="s" onClick={() => send(idea)}>
                    {idea}
                  </Button>
                ))}
              </div>
            </div>
          )}
          {path.map((turn) => {
            const { place, of } = tree.siblings(turn);
            return <TurnView key={turn.id} turn={turn} place={place} of={of} deeds={deeds} busy={busy !== null} />;
          })}
        </div>
        {fault && <Note kind="bad">{fault}</Note>}
        <Gauge path={path} />
        <form
          class="composer"
          onSubmit={(event) => {
            event.preventDefault();
            send(draft);
          }}
        >
          <textarea
            ref={input}
            class="input"
            rows={2}
            aria-label="Message"
            placeholder="Message, Enter to send, Shift+Enter for a new line"
            value={draft}
            onInput={(event) => setDraft(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                send(draft);
              } else if (event.key === "Escape") busy?.abort();
            }}
          />
          {busy ? (
            <Button kind="danger" onClick={() => busy.abort()}>
              Stop
            </Button>
          ) : (
            <Button kind="primary" submit disabled={!draft.trim()}>
              Send
            </Button>
          )}
        </form>
      </section>
      <aside class="stack">
        <Card title="Settings">
          <div class="picker">
            <ModelPicker />
            <Standing />
          </div>
          <Panel value={settings} onChange={onSettings} />
        </Card>
        <Card title="Take it with you">
          <div class="stack">
            <Segments label="Export as" value={exporting} options={[["curl", "curl"], ["python", "Python"], ["js", "JavaScript"]]} onChange={(next) => setExporting(next === exporting ? "" : next)} />
            {exporting && <Export kind={exporting} settings={settings} history={messages(path)} />}
            <Button kind="quiet s" onClick={() => tree.clear()} disabled={busy !== null || path.length === 0}>
              Clear the conversation
            </Button>
          </div>
        </Card>
      </aside>
    </div>
  );
}

function Export({ kind, settings, history }: { kind: "curl" | "python" | "js"; settings: Settings; history: Message[] }): JSX.Element {
  const last = history.findLastIndex((one) => one.role === "user");
  const asked = last >= 0 ? history.slice(0, last + 1) : [{ role: "user", content: IDEAS[0]! }];
  try {
    const what = body(settings, asked);
    const text = kind === "curl" ? asCurl(location.origin, what) : kind === "python" ? asPython(location.origin, about.value?.model ?? "default", what) : asJavaScript(location.origin, what);
    return <Command text={text} />;
  } catch (problem) {
    return <Note kind="bad">{(problem as Error).message}</Note>;
  }
}

interface Tokenized {
  count: number;
  token_strs?: (string | null)[];
}

/** How full the context is, by the server's own count. */
function Gauge({ path }: { path: Turn[] }): JSX.Element | null {
  const [shown, setShown] = useState(false);
  const [tokens, setTokens] = useState<(string | null)[]>([]);
  const last = path.findLast((turn) => turn.usage);
  const usage = last?.usage;
  const most = about.value?.max_context ?? 0;
  if (!usage || !most) return null;
  const used = usage.prompt_tokens + usage.completion_tokens;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const show = async () => {
    setShown(!shown);
    if (shown) return;
    const found = await post<Tokenized>("/tokenize", naming({ messages: last.asked, add_generation_prompt: true, return_token_strs: true }));
    setTokens(found.token_strs ?? []);
  };
  return (
    <div class="gauge">
      <div class="row between tiny muted">
        <span>
          context {count(used)} of {count(most)} tokens
        </span>
        <Button kind="quiet s" pressed={shown} onClick={() => void show()}>
          Prompt tokens
        </Button>
      </div>
      <Bar share={used / most} label="Context used" />
      {shown && (
        <div class="tokens prompt-tokens" aria-label="Tokens of the last prompt">
          {tokens.map((token, number) => (
            <span key={number} class={`token ${number < cached ? "cached" : ""}`} title={number < cached ? "from the prefix cache" : "computed"}>
              {(token ?? "?").replaceAll("Ġ", " ").replaceAll("Ċ", "⏎")}
            </span>
          ))}
        </div>
      )}
    </div>
  );
}
