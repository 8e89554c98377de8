/** 14: what makes a prefix hit, on real requests. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about } from "../../about";
import { get, headers, naming, post, told, withModel } from "../../api";
import { card } from "../../data/cards";
import { count, ms, percent } from "../../format";
import { useStream } from "../../live";
import { box, Canvas, type Pen, words } from "../../ui/draw";
import { useKept } from "../../ui/hooks";
import { Button, Card, Legend, Note, Select, Slider, Stat, Stats, Table } from "../../ui/kit";
import type { Fall } from "../dashboard/waterfall";
import { miss } from "../dashboard/requests";
import { Frame } from "./frame";

const DEFAULTS = { prefix: 400, own: 40, requests: 6, place: "last", salt: "shared" };

interface Row {
  prompt: number;
  cached: number;
  ttft_ms: number;
  fall: Fall | null;
}

export function Prefix(): JSX.Element {
  useEffect(useStream, []);
  const [state, set] = useKept(DEFAULTS);
  const [rows, setRows] = useState<Row[]>([]);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const run = async () => {
    setBusy(true);
    setFault("");
    setRows([]);
    try {
      const nonce = Math.floor(Math.random() * 1e9);
      const most = (about.value?.max_context ?? 2048) - 16;
      const text = (words: number, seed: number) => Array.from({ length: words }, (_, index) => ["water", "gate", "stone", "river", "pipe", "wheel", "valve"][(index * (seed % 5) + index + seed) % 7]).join(" ");
      const tokens = async (what: string) => (await post<{ tokens: number[] }>("/tokenize", naming({ prompt: what, add_special_tokens: false }))).tokens;
      const shared = (await tokens(`${nonce} ${text(state.prefix + 50, 1)}`)).slice(0, Math.min(state.prefix, most - state.own));
      const found: Row[] = [];
      for (let index = 0; index < state.requests; index++) {
        const own = (await tokens(`${nonce + index * 7} ${text(state.own + 50, index + 2)}`)).slice(0, state.own);
        const prompt = state.place === "last" ? [...shared, ...own] : [...own, ...shared];
        const body = JSON.stringify(naming({ prompt, max_tokens: 1, temperature: 0, return_timings: true, cache_salt: state.salt === "shared" ? `explore ${nonce}` : `explore ${nonce} ${index}` }));
        const response = await fetch("/v1/completions", { method: "POST", headers: headers(), body });
        const answer = (await response.json()) as { error?: { message: string }; usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number }; timings: Record<string, number> } };
        if (answer.error) throw new Error(answer.error.message);
        const id = response.headers.get("x-request-id") ?? "";
        const fall = await get<Fall>(withModel(`/app/v1/requests/${encodeURIComponent(id)}`)).catch(() => null);
        found.push({ prompt: answer.usage.prompt_tokens, cached: answer.usage.prompt_tokens_details.cached_tokens, ttft_ms: (answer.usage.timings["queue_ms"] ?? 0) + (answer.usage.timings["prefill_ms"] ?? 0), fall });
        setRows([...found]);
      }
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy(false);
  };
  const block = about.value?.block_size ?? 16;
  const most = Math.max(...rows.map((row) => row.prompt), 1);
  const draw = (pen: Pen) => {
    const { c, width } = pen;
    const left = 30;
    rows.forEach((row, index) => {
      const y = index * 30 + 4;
      const x = (tokens: number) => left + ((width - left - 80) * tokens) / most;
      words(pen, `#${index + 1}`, 0, y + 10, c.muted, "left", 11);
      box(pen, x(0), y, x(row.cached) - x(0), 20, c.cached, 3);
      box(pen, x(row.cached), y, x(row.prompt) - x(row.cached), 20, c.prompt, 3);
      for (let at = block; at < row.prompt; at += block) {
        pen.ctx.fillStyle = c.panel;
        pen.ctx.fillRect(x(at) - 0.3, y, 0.6, 20);
      }
      const differs = row.fall?.differs;
      if (differs) box(pen, x(differs[0]) - 1.5, y - 3, 3.5, 26, c.bad, 1);
      words(pen, ms(row.ttft_ms), width, y + 10, c.text, "right", 12);
    });
  };
  const cold = rows[0]?.ttft_ms ?? NaN;
  const warm = rows.length > 1 ? rows.slice(1).reduce((sum, row) => sum + row.ttft_ms, 0) / (rows.length - 1) : NaN;
  const saved = rows.reduce((sum, row) => sum + row.cached, 0);
  return (
    <Frame
      card={card("prefix")}
      state={rows}
      command={`penstock calc prefix prefix=${state.prefix} own=${state.own} requests=${state.requests} token-ms=0.5`}
      controls={
        <>
          <Slider label="Shared part, tokens" value={state.prefix} min={0} max={16_000} step={16} onChange={(prefix) => set({ prefix })} />
          <Slider label="Own part, tokens" value={state.own} min={1} max={2000} log onChange={(own) => set({ own })} />
          <Slider label="Requests" value={state.requests} min={2} max={16} onChange={(requests) => set({ requests })} />
          <Select label="The part that varies comes" value={state.place} options={[["last", "last"], ["first", "first"]]} onChange={(place) => set({ place })} />
          <Select label="Cache salt" value={state.salt} options={[["shared", "one for all"], ["own", "one each (tenants apart)"]]} onChange={(salt) => set({ salt })} />
          <Button kind="primary" disabled={busy} onClick={() => void run()}>
            {busy ? "Sending" : "Send them"}
          </Button>
        </>
      }
    >
      {fault && <Note kind="bad">{fault}</Note>}
      <Card title="Prompts, block by block" aside={<Legend items={[["cached", "reused"], ["prompt", "computed"], ["bad", "first token that differs from what is cached"]]} />}>
        {rows.length ? <Canvas height={rows.length * 30 + 4} label="Prompts with their cached parts" draw={draw} /> : <p class="empty">Real requests, one after the other: the first computes everything.</p>}
      </Card>
      {rows.length > 1 && (
        <>
          <Stats>
            <Stat label="cold TTFT" value={ms(cold)} />
            <Stat label="warm TTFT" value={ms(warm)} kind={warm < 0.7 * cold ? "good" : "warn"} />
            <Stat label="tokens saved" value={count(saved)} note={percent(saved / rows.reduce((sum, row) => sum + row.prompt, 0))} />
            <Stat label="cached a request" name="cached" value={count(rows.at(-1)!.cached)} note={`⌊common / ${block}⌋ × ${block}`} />
          </Stats>
          <Card title="Why no more was found">
            <Table label="Misses" columns={[["request", ""], ["cached", "n"], ["why", ""]]} rows={rows.map((row, index) => [`#${index + 1}`, count(row.cached), row.fall ? miss(row.fall) : "–"])} />
          </Card>
        </>
      )}
    </Frame>
  );
}
