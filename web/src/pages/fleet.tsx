/** The fleet: replicas behind a router where there is one, else the models of this server. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { about, fleet, type FleetView, lookAtFleet, refresh, type ReplicaRow, type Resident } from "../about";
import { bytes, count, percent, seconds, significant } from "../format";
import { live, useStream } from "../live";
import { Badge, Bar, Card, Note, PageHead, SourceBadge, Spinner, Stat, Stats, Table } from "../ui/kit";

export function Fleet(): JSX.Element {
  useEffect(() => {
    void lookAtFleet();
    const timer = setInterval(() => void lookAtFleet(), 1500);
    return () => clearInterval(timer);
  }, []);
  const found = fleet.value;
  return (
    <div class="page">
      <PageHead title="Fleet" about={found?.is_router ? `Replicas behind this router, who gets which request and why. Policy: ${found.policy ?? "–"}.` : "What serves here."}>
        <SourceBadge source="live" />
      </PageHead>
      {!found ? <Spinner text="asking" /> : found.is_router ? <Replicas fleet={found} /> : <Alone models={found.replicas} />}
    </div>
  );
}

function Replicas({ fleet: found }: { fleet: FleetView }): JSX.Element {
  const served = found.replicas.reduce((sum, one) => sum + (one.num_served ?? 0), 0);
  const choices = found.choices ?? [];
  const chosen = choices.reduce((sum, [, number]) => sum + number, 0);
  return (
    <>
      {found.replicas.every((one) => one.is_outside) && <Note kind="warn">No replica is known. Add one: penstock route --replica URL, or over the admin API.</Note>}
      <div class="cards">
        {found.replicas.map((one) => (
          <ReplicaCard key={one.name} one={one} served={served} />
        ))}
      </div>
      <Card title="Why each got its requests" about="The reason of the policy for every request it placed, by how often.">
        {chosen === 0 ? <p class="muted small">Nothing has been routed yet.</p> : <Table label="Routing reasons" columns={[["reason", ""], ["requests", "n"], ["share", "n"]]} rows={choices.map(([why, number]) => [why, count(number), percent(number / chosen)])} />}
      </Card>
      {found.replicas.some((one) => one.role) && (
        <Card title="Where prompts were computed" about="Local: by the replica that answers. Prefill: by another, whose blocks it fetched. Fetch: blocks that another had cached.">
          <Table label="Hand-overs" columns={[["where", ""], ["why", ""], ["prompts", "n"]]} rows={(found.handovers ?? []).map(([{ choice, why }, number]) => [choice, why, count(number)])} />
        </Card>
      )}
    </>
  );
}

function ReplicaCard({ one, served }: { one: ReplicaRow; served: number }): JSX.Element {
  const state = one.is_outside ? "outside API" : one.is_draining ? "draining" : one.is_turning ? "changing role" : one.is_breaker_closed === false ? "left alone" : one.state;
  return (
    <Card title={one.name} aside={<Badge kind={state === "ready" ? "good" : state === "gone" ? "bad" : one.is_outside ? "" : "warn"}>{state}</Badge>} about={one.models?.join(", ")}>
      <div class="stack">
        {!one.is_outside && <Bar share={one.kv_usage_fraction ?? 0} label={`KV of ${one.name}`} />}
        <Stats>
          <Stat label="pending" value={count(one.num_pending ?? 0)} note="sent there" />
          <Stat label="waiting" value={one.is_outside ? "–" : count(one.num_waiting ?? 0)} note="there" />
          <Stat label="served" value={count(one.num_served ?? 0)} note={served ? percent((one.num_served ?? 0) / served) : "share"} />
          <Stat label="failed" value={count(one.num_failed ?? 0)} kind={one.num_failed ? "warn" : ""} />
          <Stat label="first byte" value={seconds(one.first_byte_s || null)} note="lately" />
          <Stat label="KV" value={one.is_outside ? "–" : percent(one.kv_usage_fraction ?? 0)} />
          {one.role && <Stat label="role" value={one.role} note={`${count(one.num_prefilled ?? 0)} prompts for others`} />}
        </Stats>
      </div>
    </Card>
  );
}

/** Models of one server: loaded when asked for, kept by policy. */
function Residents({ rows }: { rows: Resident[] }): JSX.Element {
  useEffect(() => {
    const timer = setInterval(() => void refresh(), 2000);
    return () => clearInterval(timer);
  }, []);
  return (
    <Card title="Models" about="Loaded when first asked for, unloaded when idle or when another needs the room; a pinned one stays.">
      <Table
        label="Models"
        columns={[["model", ""], ["state", ""], ["memory", "n"], ["loaded in", "n"], ["in use", "n"], ["waiting", "n"], ["leaves in", "n"]]}
        rows={rows.map((one) => [
          one.name,
          <span key="s">
            <Badge kind={one.state === "ready" ? "good" : one.state === "failed" ? "bad" : ""}>{one.state}</Badge> {one.phase || one.reason}
          </span>,
          `${one.is_measured ? "" : "about "}${bytes(one.num_bytes)}`,
          seconds(one.load_s),
          count(one.num_uses),
          count(one.num_waiting),
          one.is_pinned ? "pinned" : seconds(one.expires_s),
        ])}
      />
    </Card>
  );
}

function Alone({ models }: { models: ReplicaRow[] }): JSX.Element {
  useEffect(useStream, []);
  const now = live.value;
  const found = about.value;
  return (
    <>
      <Note title={models.length > 1 ? `${models.length} models` : "One replica"}>
        No router stands before this server: its engines are the whole fleet. Several as one: <code>penstock serve --replicas 2</code> or <code>penstock route</code>, whose own page shows them here. What they would do is a matter of the <a href="#/cockpit?replicas=4&rate=40">cockpit</a>.
      </Note>
      {found?.residents && found.residents.length > 0 && <Residents rows={found.residents} />}
      <div class="cards">
        {found && (
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
        )}
      </div>
    </>
  );
}
