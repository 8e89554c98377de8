/** Decision trees to walk, checklists to tick, the cheat sheet, and the linter. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { keep, kept } from "../router";
import { useAsked } from "../ui/hooks";
import { Badge, Button, Card, Check, Command, Note, PageHead, Segments, Table, TextField } from "../ui/kit";

interface Leaf {
  kind: "advice";
  title: string;
  reasons: string[];
  commands: string[];
}
interface Ask {
  kind: "question";
  id: string;
  text: string;
  branches: { key: string; label: string; to: Place }[];
}
type Place = Leaf | Ask;
interface Tree {
  name: string;
  title: string;
  root: Place;
}
interface Item {
  id: string;
  text: string;
  evidence: string;
  remedy: string;
}
interface Advice {
  trees: Tree[];
  checklists: Record<string, Item[]>;
  cheatsheet: { remedies: Record<string, string>[]; layers: Record<string, string>[]; loop: Record<string, string>[] };
  rules: { id: string; setting: string; remedy: string }[];
  glossary: Record<string, string>;
}

/** Commands that ask this very server name the address the page came from. */
const here = (advice: Advice): Advice => JSON.parse(JSON.stringify(advice).replaceAll("http://127.0.0.1:8000", location.origin)) as Advice;

type View = "trees" | "checklists" | "cheat sheet" | "lint" | "glossary";

export function Advise(): JSX.Element {
  const [advice, setAdvice] = useState<Advice | null>(null);
  const [view, setView] = useState<View>(kept({ view: "trees" }).view as View);
  useEffect(() => void get<Advice>("/app/v1/advice").then((found) => setAdvice(here(found)), () => undefined), []);
  return (
    <div class="page">
      <PageHead title="Advice" about="Where to look first, what to buy, what to tune and in which order: by questions, every leaf ends in a command.">
        <Segments label="View" value={view} options={[["trees", "Decision trees"], ["checklists", "Checklists"], ["cheat sheet", "Cheat sheet"], ["lint", "Lint"], ["glossary", "Glossary"]]} onChange={(next) => { setView(next); keep({ view: next }, { view: "trees" }); }} />
      </PageHead>
      {advice && view === "trees" && <Trees trees={advice.trees} />}
      {advice && view === "checklists" && Object.entries(advice.checklists).map(([name, items]) => <Checklist key={name} name={name} items={items} />)}
      {advice && view === "cheat sheet" && <Sheet advice={advice} />}
      {advice && view === "glossary" && (
        <Card title="Words of the field">
          <Table label="Glossary" columns={[["word", ""], ["means", ""]]} rows={Object.entries(advice.glossary)} />
        </Card>
      )}
      {advice && view === "lint" && <Lint rules={advice.rules} />}
    </div>
  );
}

function Trees({ trees }: { trees: Tree[] }): JSX.Element {
  const [name, setName] = useState(trees[0]!.name);
  const tree = trees.find((one) => one.name === name)!;
  return (
    <div class="stack">
      <div class="cards">
        {trees.map((one) => (
          <button key={one.name} type="button" class="tile" aria-pressed={one.name === name} onClick={() => setName(one.name)}>
            <span class="num">penstock advise {one.name}</span>
            <h3>{one.title}</h3>
          </button>
        ))}
      </div>
      <Walk key={name} tree={tree} />
    </div>
  );
}

function Walk({ tree }: { tree: Tree }): JSX.Element {
  const [keys, setKeys] = useState<string[]>([]);
  const asked: { place: Ask; chosen: string }[] = [];
  let at = tree.root;
  for (const key of keys) {
    if (at.kind === "advice") break;
    const branch = at.branches.find((one) => one.key === key);
    if (!branch) break;
    asked.push({ place: at, chosen: branch.label });
    at = branch.to;
  }
  return (
    <Card title={tree.title} aside={keys.length > 0 ? <Button kind="quiet s" onClick={() => setKeys([])}>Begin again</Button> : undefined}>
      <div class="stack">
        {asked.map(({ place, chosen }, number) => (
          <button key={number} type="button" class="answered" onClick={() => setKeys(keys.slice(0, number))}>
            <span class="muted">{place.text}</span> <b>{chosen}</b>
          </button>
        ))}
        {at.kind === "question" ? (
          <fieldset class="quiz">
            <legend>{at.text}</legend>
            <div class="quiz-options">
              {at.branches.map((branch) => (
                <button key={branch.key} type="button" class="quiz-option" onClick={() => setKeys([...keys.slice(0, asked.length), branch.key])}>
                  <span aria-hidden="true">→</span>
                  {branch.label}
                </button>
              ))}
            </div>
          </fieldset>
        ) : (
          <Note kind="insight" title="Then">
            <h2>{at.title}</h2>
            <ul>
              {at.reasons.map((reason) => (
                <li key={reason}>{reason}</li>
              ))}
            </ul>
            {at.commands.map((command) => (
              <Command key={command} text={command} />
            ))}
          </Note>
        )}
      </div>
    </Card>
  );
}

function Checklist({ name, items }: { name: string; items: Item[] }): JSX.Element {
  const key = `penstock.checklist.${name}`;
  const [done, setDone] = useState<string[]>(() => JSON.parse(localStorage.getItem(key) ?? "[]") as string[]);
  const toggle = (id: string) => {
    const next = done.includes(id) ? done.filter((one) => one !== id) : [...done, id];
    setDone(next);
    localStorage.setItem(key, JSON.stringify(next));
  };
  return (
    <Card title={name === "load-test" ? "Before a load test is believed" : "Before production"} aside={<Badge kind={done.length >= items.length ? "good" : "warn"}>{done.length} of {items.length}</Badge>}>
      <Table label={name} columns={[["", ""], ["evidence", ""], ["remedy", ""]]} rows={items.map((item) => [<Check key="c" label={item.text} value={done.includes(item.id)} onChange={() => toggle(item.id)} />, <span key="e" class="small muted">{item.evidence}</span>, <span key="r" class="small mono">{item.remedy}</span>])} />
    </Card>
  );
}

function Sheet({ advice }: { advice: Advice }): JSX.Element {
  const { remedies, layers, loop } = advice.cheatsheet;
  return (
    <div class="stack">
      {([["Symptom, technique, parameter", remedies], ["Layers: mend a fault where there is authority over it", layers], ["The loop", loop]] as const).map(([title, rows]) => (
        <Card key={title} title={title}>
          <Table label={title} columns={Object.keys(rows[0] ?? {}).map((name) => [name.replaceAll("_", " "), ""] as const)} rows={rows.map((row) => Object.values(row))} />
        </Card>
      ))}
    </div>
  );
}

const EXAMPLE = "memory_fraction = 0.97\nmax_batch_tokens = 65536\nprefix_caching = false\nshared_prefix = 2000\npolicy = round-robin\nlengths = mixed\nreadiness = tcp";

function Lint({ rules }: { rules: Advice["rules"] }): JSX.Element {
  const [text, setText] = useState(EXAMPLE);
  const settings = Object.fromEntries(
    text
      .split("\n")
      .map((line) => line.split("="))
      .filter((pair) => pair.length === 2)
      .map(([name, value]) => {
        const plain = value!.trim().replace(/^"|"$/g, "");
        return [name!.trim().replaceAll("-", "_"), plain === "true" ? true : plain === "false" ? false : plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : plain];
      }),
  );
  const asked = useAsked((signal) => post<{ findings: { id: string; setting: string; found: string; remedy: string }[] }>("/app/v1/lint", { settings }, signal), settings);
  return (
    <div class="split">
      <Card title="Settings" about="One a line, as in a config file.">
        <TextField label="Settings" value={text} rows={14} onChange={setText} />
      </Card>
      <div class="stack">
        {asked.fault && <Note kind="bad">{asked.fault}</Note>}
        {asked.value?.findings.length === 0 && <Note kind="insight">No common mistake is among these.</Note>}
        {asked.value?.findings.map((one) => (
          <Note key={one.id} kind="warn" title={one.setting}>
            {one.found}. <span class="muted">Remedy: {one.remedy}</span>
          </Note>
        ))}
        <Card title="What is looked at">
          <Table label="Rules" columns={[["setting", ""], ["remedy", ""]]} rows={rules.map((rule) => [rule.setting, rule.remedy])} />
        </Card>
        <Command text="penstock lint plan.toml" />
      </div>
    </div>
  );
}
