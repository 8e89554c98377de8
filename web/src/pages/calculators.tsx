/** The calculators: forms drawn from what the server says they take, answers with formula and origin. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about } from "../about";
import { get } from "../api";
import { bytes, count, money, percent, seconds, significant } from "../format";
import { keep, query } from "../router";
import { calculate } from "../tools";
import { useAsked } from "../ui/hooks";
import { Card, Command, Note, PageHead, Segments, SourceBadge, Table } from "../ui/kit";

interface Input {
  key: string;
  kind: "number" | "whole number" | "text" | "texts" | "choice";
  choices: string[];
  default: number | string | string[] | null;
  help: string;
}
interface Calculator {
  calculator: string;
  question: string;
  inputs: Input[];
}

/** What a form begins with, so that there is an answer to look at. */
const FIRST: Record<string, Record<string, string>> = {
  throughput: { model: "llama-3-8b", hardware: "h100-sxm", batch: "16", context: "1000" },
  kv: { model: "llama-3-70b" },
  memory: { model: "llama-3-70b", hardware: "h100-sxm" },
  users: { model: "llama-3-8b", hardware: "h100-sxm" },
  roofline: { hardware: "h100-sxm", rows: "8192", columns: "8192" },
  prefix: { token_ms: "0.5" },
  transfer: { model: "llama-3-70b", link: "900e9" },
  coldstart: { model: "llama-3-70b" },
  cost: { hourly: "8.424", tokens_per_s: "1000" },
  speculation: { draft_cost: "0.057" },
  metrics: { request: "200:2200:50" },
};
const PLAIN = ["model", "hardware", "weights", "kv", "context", "batch", "prompt", "sequences", "users", "devices"];

export function shown(value: unknown, unit: string): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((one) => shown(one, unit)).join(", ");
  if (typeof value !== "number") return String(value as string);
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "s") return seconds(value);
  if (unit === "share") return percent(value);
  if (unit === "$") return money(value);
  if (unit === "flop" || unit === "flop/s") return `${significant(value / 1e12)} T${unit}`;
  return `${Number.isInteger(value) ? count(value) : significant(value, 4)}${unit ? ` ${unit}` : ""}`;
}

export function Calculators(): JSX.Element {
  const [all, setAll] = useState<Calculator[]>([]);
  const [name, setName] = useState(query.peek().get("name") ?? "throughput");
  const [texts, setTexts] = useState<Record<string, string>>(() => {
    const given = Object.fromEntries([...query.peek()].filter(([key]) => key !== "name"));
    return Object.keys(given).length ? given : (FIRST[name] ?? {});
  });
  useEffect(() => void get<{ calculators: Calculator[] }>("/app/v1/calculators").then((found) => setAll(found.calculators), () => undefined), []);
  const calculator = all.find((one) => one.calculator === name);
  const choose = (next: string) => {
    setName(next);
    setTexts(FIRST[next] ?? {});
    keep({ name: next, ...(FIRST[next] ?? {}) });
  };
  const set = (key: string, value: string) => {
    const next = { ...texts, [key]: value };
    setTexts(next);
    keep({ name, ...next });
  };
  return (
    <div class="page">
      <PageHead title="Calculators" about="Each answer says which formula it comes from and where its numbers do. What good kernels reach stands beside the vendor's peak.">
        <SourceBadge source="formula" />
      </PageHead>
      <Segments label="Calculator" value={name} options={all.map((one) => [one.calculator, one.calculator] as const)} onChange={choose} />
      {calculator && <One key={name} calculator={calculator} texts={texts} onSet={set} />}
    </div>
  );
}

function typed(input: Input, text: string): unknown {
  if (input.kind === "number" || input.kind === "whole number") return Number(text);
  return input.kind === "texts" ? text.split(/[\s;]+/).filter(Boolean) : text;
}

function One({ calculator, texts, onSet }: { calculator: Calculator; texts: Record<string, string>; onSet: (key: string, value: string) => void }): JSX.Element {
  const given = calculator.inputs.filter((input) => (texts[input.key] ?? "") !== "");
  const values = Object.fromEntries(given.map((input) => [input.key, typed(input, texts[input.key]!)]));
  const asked = useAsked((signal) => calculate(calculator.calculator, values, signal), values);
  const first = calculator.inputs.filter((input) => PLAIN.includes(input.key) || calculator.inputs.length < 9);
  const rest = calculator.inputs.filter((input) => !first.includes(input));
  const sheet = asked.value;
  const field = (input: Input) => <Field key={input.key} input={input} value={texts[input.key] ?? ""} onChange={(value) => onSet(input.key, value)} />;
  const words = given.map((input) => `${input.key.replaceAll("_", "-")}=${texts[input.key]}`).join(" ");
  return (
    <div class="split">
      <Card title={calculator.calculator} about={calculator.question}>
        <div class="fields">
          {first.map(field)}
          {rest.length > 0 && (
            <details class="more">
              <summary>By symbols instead</summary>
              <div class="fields">{rest.map(field)}</div>
            </details>
          )}
        </div>
      </Card>
      <div class="stack">
        {asked.fault && <Note kind="warn">{asked.fault}</Note>}
        {sheet && (
          <>
            <Card title="Answer">
              <Table
                label="Figures"
                columns={[["figure", ""], ["achievable", "n"], ["textbook", "n"], ["formula", ""]]}
                rows={sheet.figures.map((one) => [one.label, <b key="v" data-figure={one.key} data-value={String(one.value)}>{shown(one.value, one.unit)}</b>, <span key="t" class="muted">{shown(one.textbook, one.unit)}</span>, <span key="f" class="small muted mono">{one.formula}</span>])}
              />
            </Card>
            <Card title="From">
              <Table label="Quantities" columns={[["quantity", ""], ["value", "n"], ["textbook", "n"], ["origin", ""]]} rows={sheet.quantities.map((one) => [one.key, shown(one.value, one.unit), shown(one.textbook, one.unit), <span key="o" class="small muted">{one.origin}</span>])} />
            </Card>
            {sheet.notes.map((note) => (
              <Note key={note}>{note}</Note>
            ))}
          </>
        )}
        <Command text={`penstock calc ${calculator.calculator} ${words}`} />
      </div>
    </div>
  );
}

function Field({ input, value, onChange }: { input: Input; value: string; onChange: (value: string) => void }): JSX.Element {
  const names = input.key === "model" ? about.value?.models : input.key === "hardware" ? about.value?.devices : input.choices.length ? input.choices : undefined;
  const label = input.key.replaceAll("_", " ");
  const fallback = input.default === null || Array.isArray(input.default) ? "" : String(input.default);
  return (
    <label class="field">
      <span>{label}</span>
      {names ? (
        <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">{fallback || "not given"}</option>
          {names.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      ) : (
        <input type="text" inputMode={input.kind.includes("number") ? "decimal" : "text"} value={value} placeholder={fallback || "not given"} onInput={(event) => onChange(event.currentTarget.value)} />
      )}
      <small>{input.help}</small>
    </label>
  );
}
