/** The cockpit's controls: flags of `penstock simulate`, grouped. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { about } from "../../about";
import type { Flags } from "../../tools";
import { Check, Select, Slider, TextField } from "../../ui/kit";

const WEIGHTS = ["bf16", "fp8", "int8", "int4"] as const;
const POLICIES = ["least-pending", "round-robin", "power-of-two", "session", "consistent-hash", "prefix-predicted", "prefix-reported"] as const;

export function Knobs({ flags, onChange }: { flags: Flags; onChange: (next: Flags) => void }): JSX.Element {
  const [users, setUsers] = useState(0);
  const number = (name: string, fallback: number) => Number(flags[name] ?? fallback);
  const text = (name: string, fallback: string) => String(flags[name] ?? fallback);
  const set = (name: string, fallback?: string | number | boolean) => (value: string | number | boolean) => {
    const next = { ...flags, [name]: value };
    if (value === fallback) delete next[name]; // eslint-disable-line @typescript-eslint/no-dynamic-delete
    onChange(next);
  };
  const slider = (name: string, label: string, fallback: number, min: number, max: number, more: { step?: number; log?: boolean; hint?: string; unit?: string } = {}) => (
    <Slider label={label} value={number(name, fallback)} min={min} max={max} {...more} onChange={set(name, fallback)} />
  );
  return (
    <div class="fields">
      {slider("rate", "Requests a second", 8, 0, 500, { step: 0.5, hint: "0: all at once" })}
      <Slider
        label="… or people, each asking once a minute"
        value={users || Math.round(number("rate", 8) * 60)}
        min={1}
        max={30_000}
        log
        onChange={(value) => {
          setUsers(value);
          set("rate")(Number((value / 60).toFixed(2)));
        }}
      />
      <Select label="Model" value={text("model", "llama-3.1-8b")} options={about.value?.models ?? [text("model", "llama-3.1-8b")]} onChange={set("model")} />
      <Select label="Device" value={text("hardware", "h100-sxm")} options={[...new Set([text("hardware", "h100-sxm"), ...(about.value?.devices ?? [])])]} onChange={set("hardware")} />
      {slider("replicas", "Replicas", 1, 1, 64)}
      {slider("tensor", "Devices a replica (tensor)", 1, 1, 8)}
      <Select label="Batching" value={text("batching", "continuous")} options={["continuous", "dynamic", "static"]} onChange={set("batching", "continuous")} />
      <Check label="Prefix cache" value={flags["prefix-caching"] !== false} onChange={set("prefix-caching", true)} />
      <details class="more">
        <summary>Load</summary>
        <div class="fields">
          {slider("num-requests", "Requests in the run", 2000, 10, 10_000, { log: true })}
          {slider("burstiness", "Burstiness", 1, 0, 10, { step: 0.1, hint: "0 even, 1 independent users, more in bursts" })}
          <TextField label="Prompt tokens of their own" value={text("prompts", "sharegpt-prompts")} hint="512, 100-1024, lognormal:60:1.2:1-1000, sharegpt-prompts" onChange={set("prompts")} />
          <TextField label="Answer tokens" value={text("answers", "sharegpt-answers")} onChange={set("answers", "sharegpt-answers")} />
          {slider("shared-prefix", "Shared prefix, tokens", 0, 0, 16_000, { step: 16 })}
          {slider("num-prefixes", "Different prefixes", 1, 1, 1000, { log: true })}
          {slider("seed", "Seed", 0, 0, 100)}
        </div>
      </details>
      <details class="more">
        <summary>Precision and limits</summary>
        <div class="fields">
          <Select label="Weights" value={text("weights", "bf16")} options={WEIGHTS} onChange={set("weights", "bf16")} />
          <Select label="KV cache" value={text("kv", "auto")} options={[["auto", "bf16"], "fp8", "int8"]} onChange={set("kv", "auto")} />
          {slider("max-batch-tokens", "Step budget, tokens", 2048, 64, 32_768, { log: true })}
          {slider("max-sequences", "Sequences at once", 256, 1, 1024, { log: true })}
          {slider("max-waiting", "Queue limit", 1024, 1, 100_000, { log: true })}
          {slider("max-context", "Longest context", 8192, 512, 131_072, { log: true })}
        </div>
      </details>
      <details class="more">
        <summary>Speculation</summary>
        <div class="fields">
          {slider("speculate", "Drafts a step", 0, 0, 12)}
          {slider("acceptance", "Acceptance", 0.7, 0, 0.99, { step: 0.01 })}
          {slider("draft-cost", "Draft step cost", 0.05, 0, 0.5, { step: 0.005 })}
          {slider("speculate-up-to", "Off above sequences", 1024, 1, 1024, { log: true })}
        </div>
      </details>
      <details class="more">
        <summary>Fleet: routing, split, scaling</summary>
        <div class="fields">
          <Select label="Routing" value={text("policy", "least-pending") as (typeof POLICIES)[number]} options={POLICIES} onChange={set("policy", "least-pending")} />
          {slider("pipeline", "Stages a replica (pipeline)", 1, 1, 8)}
          {slider("prefill-replicas", "Replicas for prompts only", 0, 0, 32)}
          {slider("scale-to", "Scale up to replicas", 1, 1, 64, { hint: "1: the number stays" })}
          <Select label="Scale by" value={text("scale-by", "pending")} options={["pending", "utilisation"]} onChange={set("scale-by", "pending")} />
          {slider("cold-start-s", "Cold start, s", 60, 0, 600)}
        </div>
      </details>
      <details class="more">
        <summary>SLO</summary>
        <div class="fields">
          <Slider label="TTFT, ms" value={Math.round(1000 * number("ttft-s", 0.5))} min={20} max={10_000} log onChange={(value) => set("ttft-s")(value / 1000)} />
          <Slider label="TPOT, ms" value={Math.round(1000 * number("tpot-s", 0.05))} min={2} max={500} log onChange={(value) => set("tpot-s")(value / 1000)} />
        </div>
      </details>
    </div>
  );
}

/** Flags that only say what is so anyway would be refused together with others. */
export function cleaned(flags: Flags): Flags {
  const next = { ...flags };
  if (next["scale-to"] === 1) delete next["scale-to"];
  if (!next["scale-to"]) for (const name of ["scale-by", "cold-start-s", "down-delay-s"]) delete next[name]; // eslint-disable-line @typescript-eslint/no-dynamic-delete
  if (!next["speculate"]) for (const name of ["acceptance", "draft-cost", "speculate-up-to"]) delete next[name]; // eslint-disable-line @typescript-eslint/no-dynamic-delete
  return next;
}
