/** Utilisation: how much of the queue's capacity and of this machine is used. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { about } from "../../about";
import { post, told } from "../../api";
import { bytes, count, percent, seconds, significant } from "../../format";
import { live, steps } from "../../live";
import { Button, Card, Note, Stat, Stats } from "../../ui/kit";

interface Reached {
  peak: { bandwidth_bytes_per_s: number; flops: Record<string, number> };
  source: string;
}

export function Machine(): JSX.Element {
  const [machine, setMachine] = useState<Reached | null>(null);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const measure = async () => {
    setBusy(true);
    try {
      setMachine(await post<Reached>("/app/v1/machine", {}));
    } catch (problem) {
      setFault(told(problem));
    }
    setBusy(false);
  };
  const now = live.value!;
  const rows = steps.value.slice(-200);
  const spent = rows.reduce((sum, row) => sum + row[1], 0);
  const memory = new Map(about.value?.memory ?? []);
  const weights = memory.get("weights") ?? 0;
  const positions = (about.value?.num_blocks ?? 0) * (about.value?.block_size ?? 0);
  const perPosition = positions ? (memory.get("KV cache") ?? 0) / positions : 0;
  const read = rows.reduce((sum, row) => sum + weights + row[6] * perPosition, 0);
  const span = rows.length > 1 ? rows.at(-1)![0] - rows[0]![0] + rows[0]![1] : 0;
  const busyShare = span > 0 ? Math.min(spent / span, 1) : 0;
  const { latency, load } = now;
  const inside = latency.mean_e2e_s === null ? null : latency.arrivals_per_s * latency.mean_e2e_s;
  const capacity = about.value?.max_sequences ?? 1;
  return (
    <Card class="c6" title="Utilisation" about="Busy is not utilised: a step of one sequence keeps the machine as busy as a step of a hundred.">
      <div class="stack">
        <Stats>
          <Stat label="busy" value={percent(busyShare)} note="share of time in a step" />
          <Stat label="sequences" value={percent(load.num_running / capacity)} note={`${count(load.num_running)} of ${count(capacity)}`} />
          <Stat label="Little: L = λ W" value={inside === null ? "–" : significant(inside)} note={`λ ${significant(latency.arrivals_per_s)}/s, W ${seconds(latency.mean_e2e_s)}`} title="Mean requests inside, from their rate and their time" />
          <Stat label="bytes read" value={spent ? `${bytes(read / spent)}/s` : "–"} note="weights and KV, a step" />
          <Stat label="MBU" value={machine && spent ? percent(read / spent / machine.peak.bandwidth_bytes_per_s) : "–"} note={machine ? `of ${bytes(machine.peak.bandwidth_bytes_per_s)}/s measured` : "measure first"} />
        </Stats>
        {!machine && (
          <div class="row">
            <Button kind="s" disabled={busy} onClick={() => void measure()}>
              {busy ? "Measuring" : "Measure this machine"}
            </Button>
            <span class="small muted">Some seconds, once; in a process of low priority.</span>
          </div>
        )}
        {machine && <p class="tiny faint">{machine.source}</p>}
        {fault && <Note kind="bad">{fault}</Note>}
      </div>
    </Card>
  );
}
