/** The explorations, as cards, and one of them if the address names it. */
import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { CARDS } from "../../data/cards";
import { part } from "../../router";
import { PageHead, SourceBadge, Spinner } from "../../ui/kit";

const loads: Record<string, () => Promise<ComponentType>> = {
  lifecycle: async () => (await import("./lifecycle")).Lifecycle,
  "decode-loop": async () => (await import("./decode-loop")).DecodeLoop,
  phases: async () => (await import("./phases")).Phases,
  "kv-growth": async () => (await import("./kv-growth")).KvGrowth,
  hierarchy: async () => (await import("./hierarchy")).Hierarchy,
  latency: async () => (await import("./latency")).Latency,
  throughput: async () => (await import("./throughput")).Throughput,
  batching: async () => (await import("./batching")).Batching,
  attention: async () => (await import("./attention")).Attention,
  blocks: async () => (await import("./blocks")).Blocks,
  speculation: async () => (await import("./speculation")).Speculation,
  memory: async () => (await import("./memory")).MemoryCard,
  parallelism: async () => (await import("./parallelism")).Parallelism,
  prefix: async () => (await import("./prefix")).Prefix,
  split: async () => (await import("./split")).Split,
};
const loaded = new Map<string, ComponentType>();

export function Explore(): JSX.Element {
  const slug = part.value;
  const [, setCount] = useState(0);
  useEffect(() => {
    const load = loads[slug];
    if (!load || loaded.has(slug)) return;
    void load().then((component) => {
      loaded.set(slug, component);
      setCount((value) => value + 1);
    });
  }, [slug]);
  if (loads[slug]) {
    const Found = loaded.get(slug);
    return Found ? <Found key={slug} /> : <div class="page"><Spinner text="opening" /></div>;
  }
  return (
    <div class="page">
      <PageHead title="Explore" about="Sixteen ways to see inference work: on the model being served wherever it can show it, on the real scheduler or on formulas otherwise. Each card says which." />
      <div class="cards">
        {CARDS.map((one) => (
          <a key={one.slug} class="tile" href={`#/explore/${one.slug}`}>
            <span class="num">{one.number}</span>
            <h2>{one.title}</h2>
            <span class="q">{one.question}</span>
            <span class="row">
              {one.sources.map((source) => (
                <SourceBadge key={source} source={source} />
              ))}
            </span>
          </a>
        ))}
        <a class="tile" href="#/cockpit">
          <span class="num">16</span>
          <h2>Cockpit</h2>
          <span class="q">How do all knobs act together?</span>
          <span class="row">
            <SourceBadge source="simulated" />
          </span>
        </a>
      </div>
    </div>
  );
}
