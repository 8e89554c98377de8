/** The dashboard: what the engine is doing now, and why it is slow if it is. */
import { useComputed } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about } from "../../about";
import { needsKey } from "../../api";
import { count, percent, seconds, significant } from "../../format";
import { connection, history, live, steps, useLive, useStream } from "../../live";
import { Plot } from "../../ui/draw";
import { Badge, Card, Legend, Note, PageHead, SourceBadge, Stat, Stats } from "../../ui/kit";
import { ModelPicker, Standing } from "../../ui/models";
import { Part } from "../../ui/sight";
import { Adapters } from "./adapters";
import { Heat } from "./heat";
import { KvMap } from "./kv";
import { Machine } from "./machine";
import { Operating } from "./operating";
import { Misses, Refusals } from "./refusals";
import { Requests } from "./requests";
import { Strip } from "./strip";
import { Waterfall } from "./waterfall";

export function Dashboard(): JSX.Element {
  useEffect(useStream, []);
  const isThere = useComputed(() => live.value !== null);
  return (
    <div class="page">
      <PageHead title="Dashboard" about="What the engine does, as it does it. Of requests that ended while nobody looked, outcome, counts and times are kept; steps and blocks are not.">
        <ModelPicker />
        <Connection />
      </PageHead>
      <Standing />
      <Down />
      {isThere.value ? <div class={isCurrent() ? "stack" : "stack stale"}><Parts /></div> : <Note>Waiting for the first view of the engine.</Note>}
    </div>
  );
}

/** Each reads the stream itself, the larger ones a frame after each other: no single frame draws everything. */
function Parts(): JSX.Element {
  return (
    <>
      <Part>
        <Numbers />
      </Part>
      <Part>
        <Why />
      </Part>
      <Part>
        <Card title="Steps" about="A bar a step: its height is its time, its colours what was computed." aside={<Legend items={[["prompt", "prompt tokens"], ["decode", "decoding"], ["draft", "drafts"]]} />}>
          <Steps />
        </Card>
      </Part>
      <Part>
        <div class="grid">
          <Card class="c7" title="KV blocks" aside={<Legend items={[["decode", "held"], ["cached", "cached, shared"], ["draft", "pinned"], ["idle", "free"]]} />}>
            <Blocks />
          </Card>
          <Card class="c5" title="Load" about="Sequences running and waiting, and tokens a second.">
            <History />
          </Card>
        </div>
      </Part>
      <Part>
        <Inside />
      </Part>
      <Part>
        <Heats />
      </Part>
      <Part>
        <div class="grid">
          <Operating />
          <Machine />
          <Misses />
        </div>
      </Part>
      <Part>
        <Adapters />
      </Part>
      <Part>
        <Refusals />
      </Part>
    </>
  );
}

function Steps(): JSX.Element {
  useLive(1);
  return <Strip steps={steps.peek()} budget={about.value?.max_batch_tokens ?? 0} />;
}

function Blocks(): JSX.Element {
  const now = useLive(2);
  return now?.kv ? <KvMap pool={now.kv} tiers={now.tiers} /> : <p class="muted">The engine has not shown its cache yet.</p>;
}

function Inside(): JSX.Element {
  const [picked, setPicked] = useState<number | null>(null);
  const now = useLive(4);
  return (
    <div class="stack">
      <Requests rows={now?.requests ?? []} ended={now?.ended ?? []} picked={picked} onPick={setPicked} />
      {picked !== null && <Waterfall id={picked} key={picked} onClose={() => setPicked(null)} />}
    </div>
  );
}

function Heats(): JSX.Element {
  const samples = useLive(5)?.samples ?? [];
  return (
    <div class="grid">
      <Card class="c6" title="TTFT" about="Requests that ended, by when and by how long their first token took.">
        <Heat samples={samples.map(([ago, ttft]) => [ago, ttft])} label="Time to first token" />
      </Card>
      <Card class="c6" title="TPOT" about="Likewise by seconds a token after the first.">
        <Heat samples={samples.filter(([, , tpot]) => tpot > 0).map(([ago, , tpot]) => [ago, tpot])} label="Time per output token" />
      </Card>
    </div>
  );
}

/** The figures are of an engine that answers now. */
const isCurrent = (): boolean => connection.value === "open" && live.value?.is_ready === true;

function Connection(): JSX.Element {
  const state = connection.value;
  if (needsKey.value) return <Badge kind="warn">a key is needed</Badge>;
  if (state === "broken") return <Badge kind="bad">connection lost, trying again</Badge>;
  if (state !== "open") return <Badge>connecting</Badge>;
  return isCurrent() ? <SourceBadge source="live" /> : <Badge kind="warn">engine not ready</Badge>;
}

/** Why there is nothing current to see, if there is nothing. */
function Down(): JSX.Element | null {
  if (isCurrent() || live.value === null) return null;
  if (connection.value !== "open") return <Note kind="bad" title="The server does not answer">What stands below is what it said last. The page goes on by itself when it is back.</Note>;
  return <Note kind="warn" title="The engine is not ready">{live.value.num_restarts ? `It is being started again (${count(live.value.num_restarts)} restarts so far). Requests wait until it is there.` : "It is being loaded. Until it is there, requests are told to come back in a moment."}</Note>;
}

function Numbers(): JSX.Element {
  const now = (useLive(0) ?? live.peek())!;
  const { load, rates, latency } = now;
  const most = about.value?.max_sequences ?? 0;
  const tight = (latency.ttft.p99 ?? 0) > 0.5 || (latency.tpot.p99 ?? 0) > 0.05;
  const hit = rates.prompt_per_s > 0 ? rates.cached_per_s / rates.prompt_per_s : NaN;
  return (
    <Stats>
      <Stat label="running" value={count(load.num_running)} note={`of ${count(most)}`} />
      <Stat label="waiting" value={count(load.num_waiting)} kind={load.num_waiting > 0 ? "warn" : ""} note={`${count(load.num_waiting_tokens)} tokens`} />
      <Stat label="tokens/s out" value={significant(rates.output_per_s)} note={`last ${seconds(rates.window_s)}`} />
      <Stat label="tokens/s in" value={significant(rates.prompt_per_s)} note={Number.isFinite(hit) ? `${percent(hit)} cached` : "no prompts"} />
      <Stat label="requests/s" value={significant(now.queue.ended_per_s)} note={`ended, last ${seconds(now.queue.window_s)}`} />
      <Stat label="TTFT p50 / p99" value={seconds(latency.ttft.p50)} note={`p99 ${seconds(latency.ttft.p99)}`} />
      <Stat label="TPOT p50 / p99" value={seconds(latency.tpot.p50)} note={`p99 ${seconds(latency.tpot.p99)}`} />
      <Stat label="KV used" name="kv-used" value={percent(load.kv_usage_fraction)} kind={load.kv_usage_fraction > 0.95 ? "bad" : load.kv_usage_fraction > 0.8 ? "warn" : ""} note={`${count(load.num_preemptions)} preemptions`} />
      <Stat label="chat SLO" value={latency.num_requests === 0 ? "–" : tight ? "missed" : "met"} kind={latency.num_requests === 0 ? "" : tight ? "bad" : "good"} note="TTFT 500, TPOT 50 ms at p99" />
    </Stats>
  );
}

function Why(): JSX.Element | null {
  const { findings, load } = (useLive(0) ?? live.peek())!;
  if (!isCurrent()) return null;
  const first = findings.find((one) => one.verdict !== "ok");
  if (!first) {
    return <Note title="Why is it slow?">{load.num_running + load.num_waiting ? "No rule of the doctor fires: nothing stands in the way but the work itself." : "It is idle."}</Note>;
  }
  return (
    <Note kind={first.verdict === "fault" ? "bad" : "warn"} title={`Why is it slow? ${first.layer} ${first.layer_name}`}>
      <b>{first.symptom}.</b> {first.evidence}. <span class="muted">Remedy: {first.remedy}</span>
      {findings.length > 1 && <span class="muted small"> And {findings.length - 1} more: {findings.slice(1).map((one) => one.symptom).join("; ")}.</span>}
    </Note>
  );
}

function History(): JSX.Element {
  useLive(3);
  const rows = history.peek();
  const last = rows.at(-1)?.time_s ?? 0;
  const x = rows.map((row) => row.time_s - last);
  return (
    <Plot
      label="Load over the last minutes"
      height={250}
      x={x}
      xLabel="seconds ago"
      y2Label="tokens/s"
      lines={[
        { label: "running", values: rows.map((row) => row.running), colour: "decode" },
        { label: "waiting", values: rows.map((row) => row.waiting), colour: "bad", dash: [4, 3] },
        { label: "tokens/s out", values: rows.map((row) => row.output), colour: "cached", right: true },
      ]}
    />
  );
}
