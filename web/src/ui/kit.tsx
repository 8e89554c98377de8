/** The pieces every page is built of. */
import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";

export type Source = "live" | "simulated" | "formula";
const SOURCES: Record<Source, string> = {
  live: "From the model that is being served, as it was measured",
  simulated: "From the engine's own scheduler under a virtual clock",
  formula: "Computed by the server from published figures",
};

export function Badge(props: { kind?: string; title?: string; children: ComponentChildren }): JSX.Element {
  return (
    <span class={`badge ${props.kind ?? ""}`} title={props.title}>
      {props.children}
    </span>
  );
}

export function SourceBadge({ source }: { source: Source }): JSX.Element {
  const shape = { live: "●", simulated: "◆", formula: "ƒ" }[source];
  return (
    <Badge kind={source} title={SOURCES[source]}>
      <span aria-hidden="true">{shape}</span>
      {source}
    </Badge>
  );
}

export function Card(props: {
  title?: ComponentChildren;
  about?: ComponentChildren;
  aside?: ComponentChildren;
  class?: string;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {props.title !== undefined && (
        <div class="card-head">
          <h2>{props.title}</h2>
          <span class="grow" />
          {props.aside}
          {props.about !== undefined && <p>{props.about}</p>}
        </div>
      )}
      {props.children}
    </section>
  );
}

export function PageHead(props: { title: string; about?: ComponentChildren; children?: ComponentChildren }): JSX.Element {
  return (
    <header class="page-head">
      <div>
        <h1>{props.title}</h1>
        {props.about !== undefined && <p>{props.about}</p>}
      </div>
      <div class="row">{props.children}</div>
    </header>
  );
}

export function Stat(props: {
  label: string;
  value: ComponentChildren;
  unit?: string;
  note?: ComponentChildren;
  kind?: "" | "good" | "bad" | "warn";
  title?: string;
  name?: string;
}): JSX.Element {
  return (
    <div class={`stat ${props.kind ?? ""}`} title={props.title} data-stat={props.name ?? props.label}>
      <span class="label">{props.label}</span>
      <span class="value">
        {props.value}
        {props.unit !== undefined && <small> {props.unit}</small>}
      </span>
      {props.note !== undefined && <span class="note">{props.note}</span>}
    </div>
  );
}

export const Stats = ({ children }: { children: ComponentChildren }): JSX.Element => <div class="stats">{children}</div>;

export function Slider(props: {
  label: string;
  value: number;
  min: number;
  max: number;
  step?: number;
  log?: boolean;
  hint?: string;
  unit?: string;
  onChange: (value: number) => void;
}): JSX.Element {
  const id = useId();
  const [typed, setTyped] = useState<string | null>(null); // kept while the page is drawn anew around it
  const { min, max, value } = props;
  const base = props.log ? Math.max(min, 1e-9) : 0;
  const toPlace = (x: number) => (props.log ? Math.log(Math.max(x, base) / base) / Math.log(max / base) : x);
  const fromPlace = (x: number) => (props.log ? nice(base * Math.pow(max / base, x), props.step ?? 1) : x);
  const set = (x: number) => {
    if (Number.isFinite(x)) props.onChange(Math.min(Math.max(x, min), max));
  };
  return (
    <div class="field">
      <label class="field-head" for={id}>
        <span>{props.label}</span>
        {props.unit && <span class="faint tiny">{props.unit}</span>}
      </label>
      <div class="pair">
        <input
          type="range"
          aria-label={`${props.label}, slider`}
          min={props.log ? 0 : min}
          max={props.log ? 1 : max}
          step={props.log ? 0.001 : (props.step ?? 1)}
          value={toPlace(value)}
          onInput={(event) => set(fromPlace(Number(event.currentTarget.value)))}
        />
        <input
          id={id}
          type="number"
          min={min}
          max={max}
          step="any"
          value={typed ?? value}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onChange={(event) => {
            setTyped(null);
            set(Number(event.currentTarget.value));
          }}
        />
      </div>
      {props.hint && <small>{props.hint}</small>}
    </div>
  );
}

function nice(value: number, step: number): number {
  if (value < 10 && step < 1) return Math.round(value / step) * step;
  const digits = value < 100 ? 0 : Math.floor(Math.log10(value)) - 2;
  const unit = Math.max(10 ** digits, 1);
  return Number((Math.round(value / unit) * unit).toPrecision(6));
}

export function Select<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (T | readonly [T, string])[];
  hint?: string;
  onChange: (value: T) => void;
}): JSX.Element {
  return (
    <label class="field">
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value as T)}>
        {props.options.map((option) => {
          const [value, text] = typeof option === "string" ? [option, option] : option;
          return (
            <option key={value} value={value}>
              {text}
            </option>
          );
        })}
      </select>
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function TextField(props: {
  label: string;
  value: string;
  rows?: number;
  placeholder?: string;
  hint?: string;
  onChange: (value: string) => void;
}): JSX.Element {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.rows ? (
        <textarea
          rows={props.rows}
          value={props.value}
          placeholder={props.placeholder}
          onInput={(event) => props.onChange(event.currentTarget.value)}
        />
      ) : (
        <input
          type="text"
          value={props.value}
          placeholder={props.placeholder}
          onInput={(event) => props.onChange(event.currentTarget.value)}
        />
      )}
      {props.hint && <small>{props.hint}</small>}
    </label>
  );
}

export function Check(props: { label: string; value: boolean; title?: string; onChange: (value: boolean) => void }): JSX.Element {
  return (
    <label class="check" title={props.title}>
      <input type="checkbox" checked={props.value} onChange={(event) => props.onChange(event.currentTarget.checked)} />
      {props.label}
    </label>
  );
}

export function Segments<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}): JSX.Element {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.options.map(([value, text]) => (
        <button key={value} type="button" aria-pressed={value === props.value} onClick={() => props.onChange(value)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function Button(props: {
  kind?: string;
  title?: string;
  disabled?: boolean;
  pressed?: boolean;
  submit?: boolean;
  onClick?: () => void;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <button
      type={props.submit ? "submit" : "button"}
      class={`button ${props.kind ?? ""}`}
      title={props.title}
      disabled={props.disabled}
      aria-pressed={props.pressed}
      onClick={props.onClick}
    >
      {props.children}
    </button>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  const [done, setDone] = useState(false);
  const copy = () => {
    // Browsers give a page the clipboard over HTTPS and on this machine only.
    if (!("clipboard" in navigator)) {
      prompt("Copy this", text);
      return;
    }
    void navigator.clipboard.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    });
  };
  return (
    <Button kind="s" onClick={copy}>
      {done ? "Copied" : label}
    </Button>
  );
}

/** A command line that does what the page shows. */
export function Command({ text }: { text: string }): JSX.Element {
  return (
    <div class="command">
      <pre tabIndex={0} aria-label="The same as a command">
        {text}
      </pre>
      <Copy text={text} />
    </div>
  );
}

export type Swatch = "prompt" | "decode" | "cached" | "draft" | "bad" | "idle" | "hatched";
export function Legend({ items }: { items: readonly (readonly [Swatch, string])[] }): JSX.Element {
  return (
    <div class="legend">
      {items.map(([kind, text]) => (
        <span key={text}>
          <i class={`swatch ${kind}`} aria-hidden="true" />
          {text}
        </span>
      ))}
    </div>
  );
}

/** What came of a question. Grey while it is asked again, or when that failed: it is of other settings then. */
export function Results({ of, children }: { of: { value: unknown; fault: string; busy: boolean }; children: ComponentChildren }): JSX.Element {
  const isOld = of.value !== null && (of.busy || of.fault !== "");
  return (
    <div class={isOld ? "stack stale" : "stack"} aria-busy={of.busy}>
      {children}
    </div>
  );
}

export function Note(props: { kind?: "insight" | "warn" | "bad"; title?: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class={`note-box ${props.kind ?? ""}`} role={props.kind === "bad" ? "alert" : undefined}>
      {props.title && <strong>{props.title}</strong>}
      {props.children}
    </div>
  );
}

export const Spinner = ({ text }: { text?: string }): JSX.Element => (
  <span class="row muted small" role="status">
    <i class="spinner" aria-hidden="true" />
    {text ?? "working"}
  </span>
);

export function Bar({ share, label, plain }: { share: number; label: string; plain?: boolean }): JSX.Element {
  const kind = plain ? "" : share >= 0.95 ? "bad" : share >= 0.8 ? "warn" : "";
  return (
    <div class={`bar ${kind}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 * share)}>
      <i style={{ width: `${Math.min(Math.max(share, 0), 1) * 100}%` }} />
    </div>
  );
}

export function Table(props: {
  columns: readonly (readonly [string, ("n" | "")?])[];
  rows: readonly (readonly ComponentChildren[])[];
  label: string;
}): JSX.Element {
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.columns.map(([name, kind]) => (
              <th key={name} class={kind ?? ""} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row, number) => (
            <tr key={number}>
              {row.map((cell, column) => (
                <td key={column} class={props.columns[column]?.[1] ?? ""}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
