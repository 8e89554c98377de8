/** What a run amounts to, one configuration or two beside each other. */
import type { ComponentChildren, JSX } from "preact";
import { count, money, percent, seconds, significant } from "../../format";
import { type Flags, isUnstable, only, type Simulated } from "../../tools";
import { Table } from "../../ui/kit";

export function devicesOf(flags: Flags): number {
  const of = (name: string, fallback: number) => Number(flags[name] ?? fallback);
  return (of("replicas", 1) + of("prefill-replicas", 0)) * of("tensor", 1) * of("pipeline", 1);
}

export function costOf(run: Simulated, flags: Flags, price: number): { hour: number; million: number } {
  const each = price || run.report.step_times.hardware.price_per_hour || NaN;
  const outcome = only(run);
  const replicas = outcome.replica_seconds / Math.max(outcome.summary.duration_s, 1e-9);
  const perReplica = Number(flags["tensor"] ?? 1) * Number(flags["pipeline"] ?? 1);
  const hour = each * replicas * perReplica;
  return { hour, million: (hour / (3600 * outcome.summary.output_tokens_per_s)) * 1e6 };
}

export function rhoOf(run: Simulated, flags: Flags): number {
  return Number(flags["rate"] ?? 8) > 0 ? (only(run).queue.rho ?? NaN) : NaN;
}

interface Side {
  run: Simulated;
  flags: Flags;
}

/** Name, value of a side, whether more is better. */
type Row = readonly [string, (side: Side) => number, (value: number) => string, 1 | -1 | 0];

function rows(price: number): Row[] {
  const latency = (pick: (side: Side) => number) => (side: Side) => (isUnstable(side.run) ? NaN : pick(side));
  return [
    ["tokens/s", ({ run }) => only(run).summary.output_tokens_per_s, count, 1],
    ["requests/s", ({ run }) => only(run).summary.requests_per_s, (value) => significant(value), 1],
    ["TTFT p50", latency(({ run }) => only(run).summary.ttft.p50), seconds, -1],
    ["TTFT p99", latency(({ run }) => only(run).summary.ttft.p99), seconds, -1],
    ["TPOT p50", latency(({ run }) => only(run).summary.tpot.p50), seconds, -1],
    ["TPOT p99", latency(({ run }) => only(run).summary.tpot.p99), seconds, -1],
    ["ITL p99", latency(({ run }) => only(run).summary.itl.p99), seconds, -1],
    ["E2E p50", latency(({ run }) => only(run).summary.e2e.p50), seconds, -1],
    ["goodput", ({ run }) => only(run).summary.good_fraction, percent, 1],
    ["goodput, requests/s", ({ run }) => only(run).summary.good_requests_per_s, (value) => significant(value), 1],
    ["ρ = offered / capacity", ({ run, flags }) => rhoOf(run, flags), (value) => significant(value), -1],
    ["inside, L = λ W", ({ run }) => only(run).queue.inside, (value) => significant(value), 0],
    ["mean queue", ({ run }) => only(run).replicas.reduce((sum, one) => sum + one.mean_waiting, 0), (value) => significant(value), -1],
    ["prompt tokens cached", ({ run }) => only(run).summary.num_cached_tokens / Math.max(only(run).summary.num_prompt_tokens, 1), percent, 1],
    ["KV used at most", ({ run }) => Math.max(...only(run).replicas.map((one) => one.max_kv_usage_fraction)), percent, 0],
    ["preemptions", ({ run }) => only(run).replicas.reduce((sum, one) => sum + one.num_preemptions, 0), count, -1],
    ["refused", ({ run }) => only(run).summary.outcomes["refused"] ?? 0, count, -1],
    ["devices", ({ flags }) => devicesOf(flags), count, 0],
    ["cost an hour", ({ run, flags }) => costOf(run, flags, price).hour, money, -1],
    ["$ a million tokens", ({ run, flags }) => costOf(run, flags, price).million, money, -1],
  ];
}

export function FigureTable({ sides, price }: { sides: Side[]; price: number }): JSX.Element {
  const table = rows(price).map(([name, value, format, better]): ComponentChildren[] => {
    const values = sides.map(value);
    const cells: ComponentChildren[] = values.map((one, number) => (
      <span key={number} data-figure={`${name} ${number ? "B" : "A"}`} data-value={one}>
        {Number.isNaN(one) ? (name.includes("T") ? "unstable" : "–") : format(one)}
      </span>
    ));
    if (values.length === 2) cells.push(<Change from={values[0]!} to={values[1]!} better={better} />);
    return [name, ...cells];
  });
  const columns: [string, ("n" | "")?][] = [["", ""], ["A", "n"], ...(sides.length === 2 ? ([["B", "n"], ["B against A", "n"]] as [string, "n"][]) : [])];
  return <Table label="Figures of the runs" columns={columns} rows={table} />;
}

function Change({ from, to, better }: { from: number; to: number; better: 1 | -1 | 0 }): JSX.Element {
  if (!Number.isFinite(from) || !Number.isFinite(to) || from === to || !from) return <span class="faint">–</span>;
  const ratio = to / from;
  const isBetter = better !== 0 && ratio > 1 === better > 0;
  const text = ratio > 2 || ratio < 0.5 ? `${significant(ratio, 2)} ×` : `${ratio > 1 ? "+" : "−"}${significant(Math.abs(100 * (ratio - 1)), 2)} %`;
  return <span class={`badge ${better === 0 || Math.abs(ratio - 1) < 0.02 ? "" : isBetter ? "good" : "bad"}`}>{text}</span>;
}
