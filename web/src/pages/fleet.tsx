/** The fleet: replicas behind a router where there is one, else the models of this server. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about } from "../about";
import { get } from "../api";
import { bytes, count, percent, significant } from "../format";
import { live, useStream } from "../live";
import { Badge, Bar, Card, Note, PageHead, SourceBadge, Stat, Stats, Table } from "../ui/kit";

interface Replica {
  name: string;
  url?: string;
  state?: string;
  num_running?: number;
  num_waiting?: number;
  num_pending?: number;
  kv_usage_fraction?: number;
  share?: number;
  reason?: string;
}
interface FleetView {
  replicas: Replica[];
  policy?: string;
  choices?: { reason: string; count: number }[];
}

export function Fleet(): JSX.Element {
  useEffect(useStream, []);
  const [fleet, setFleet] = useState<FleetView | null>(null);
  useEffect(() => {
    const ask = () => void get<FleetView>("/app/v1/fleet").then(setFleet, () => setFleet(null));
    ask();
    const timer = setInterval(ask, 2000);
    return () => clearInterval(timer);
  }, []);
  const now = live.value;
  const found = about.value;
  return (
    <div class="page">
      <PageHead title="Fleet" about="Replicas, who gets which request and why.">
        <SourceBadge source="live" />
      </PageHead>
      {fleet && fleet.replicas.length > 1 ? (
        <>
          <div class="cards">
            {fleet.replicas.map((one) => (
              <Card key={one.name} title={one.name} aside={<Badge kind={one.state === "ready" ? "good" : "warn"}>{one.state ?? "unknown"}</Badge>}>
                <div class="stack">
                  <Bar share={one.kv_usage_fraction ?? 0} label={`KV of ${one.name}`} />
                  <Stats>
                    <Stat label="running" value={count(one.num_running ?? 0)} />
                    <Stat label="waiting" value={count(one.num_waiting ?? one.num_pending ?? 0)} />
                    {one.share !== undefined && <Stat label="share" value={percent(one.share)} />}
                  </Stats>
                </div>
              </Card>
            ))}
          </div>
          {fleet.choices && (
            <Card title="Why" about={`Policy: ${fleet.policy ?? "–"}`}>
              <Table label="Routing reasons" columns={[["reason", ""], ["requests", "n"]]} rows={fleet.choices.map((one) => [one.reason, count(one.count)])} />
            </Card>
          )}
        </>
      ) : (
        <>
          <Note title="One replica">
            No router stands before this server, so its one engine is the whole fleet. What several would do is a matter of the <a href="#/cockpit?replicas=4&rate=40">cockpit</a>.
          </Note>
          {found && (
            <div class="cards">
              <Card title={found.model || "loading"} aside={<Badge kind={found.state === "ready" ? "good" : "warn"}>{found.state}</Badge>} about={`on ${found.device}`}>
                <div class="stack">
                  <Bar share={now?.load.kv_usage_fraction ?? 0} label="KV in use" />
                  <Stats>
                    <Stat label="running" value={count(now?.load.num_running ?? 0)} note={`of ${count(found.max_sequences)}`} />
                    <Stat label="waiting" value={count(now?.load.num_waiting ?? 0)} />
                    <Stat label="tokens/s" value={significant(now?.rates.output_per_s ?? 0)} />
                    <Stat label="restarts" value={count(now?.num_restarts ?? 0)} />
                  </Stats>
                  <Table label="Memory" columns={[["memory", ""], ["", "n"]]} rows={found.memory.map(([name, size]) => [name, bytes(size)])} />
                </div>
              </Card>
            </div>
          )}
        </>
      )}
    </div>
  );
}
