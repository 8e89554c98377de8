/** Utilisation: how much of what it could carry is asked for, and how much of this machine that takes. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about } from "../../about";
import { post, told } from "../../api";
import { bytes, count, money, percent, seconds, significant } from "../../format";
import { live, type StepRow, steps, useLive } from "../../live";
import { Button, Card, Note, Stat, Stats } from "../../ui/kit";

interface Reached {
  peak: { bandwidth_bytes_per_s: number; flops: Record<string, number> };
  source: string;
}

/** What the last steps did: seconds in them, share of time, bytes read, operations. */
function work(rows: StepRow[]): { spent: number; share: number; read: number; operations: number } {
  const facts = about.value;
  const memory = new Map(facts?.memory ?? []);
  const weights = memory.get("weights") ?? 0;
  const positions = (facts?.num_blocks ?? 0) * (facts?.block_size ?? 0);
  const perPosition = positions ? (memory.get("KV cache") ?? 0) / positions : 0;
  const spent = rows.reduce((sum, row) => sum + row[1], 0);
  const span = rows.length > 1 ? rows.at(-1)![0] - rows[0]![0] + rows[0]![1] : 0;
  return {
    spent,
    share: span > 0 ? Math.min(spent / span, 1) : 0,
    read: rows.reduce((sum, row) => sum + weights + row[6] * perPosition, 0),
    operations: rows.reduce((sum, row) => sum + 2 * (facts?.num_active_parameters ?? 0) * (row[2] + row[3] + row[4]), 0),
  };
}

export function Machine(): JSX.Element {
  /** Null once it is known that nobody measured it. */
  const [machine, setMachine] = useState<Reached | null | undefined>();
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const ask = async (measures: boolean) => {
    setBusy(measures);
    try {
      setMachine(await post<Reached | null>("/app/v1/machine", { measures }));
    } catch (problem) {
      if (measures) setFault(told(problem));
      else setMachine(null);
    }
    setBusy(false);
  };
  useEffect(() => void ask(false), []);
  const { load, queue, power } = (useLive(6) ?? live.peek())!;
  const done = work(steps.peek().slice(-200));
  const inside = queue.mean_time_s === null ? null : queue.arrivals_per_s * queue.mean_time_s;
  const capacity = about.value?.max_sequences ?? 1;
  const flops = machine ? Math.max(...Object.values(machine.peak.flops)) : 0;
  const rho = queue.rho;
  const per = (value: number) => (done.spent ? value / done.spent : 0);
  return (
    <Card class="c6" title="Utilisation" about={`ρ, λ, W and L are of the last ${seconds(queue.window_s)}. Busy is not utilised: a step of one sequence keeps the machine as busy as a step of a hundred.`}>
      <div class="stack">
        <Stats>
          <Stat label="ρ = λ / μ" name="rho" value={rho === null ? "–" : significant(rho, 2)} kind={rho === null ? "" : rho > 1 ? "bad" : rho > 0.8 ? "warn" : "good"} note={queue.capacity_per_s === null ? "needs some requests" : `λ ${significant(queue.arrivals_per_s)}, μ about ${significant(queue.capacity_per_s)} requests/s`} title="Requests that came, a second, over those that full batches would carry: by the steps of the last minutes, for requests like the last ones" />
          <Stat label="L = λ W" name="little" value={inside === null ? "–" : significant(inside)} note={`λ ${significant(queue.arrivals_per_s)}/s, W ${seconds(queue.mean_time_s)}`} title={`Little's law: mean requests inside, from their rate and their time; over the last ${seconds(queue.window_s)}`} />
          <Stat label="L counted" name="inside" value={significant(queue.mean_inside)} note={`inside, mean of ${seconds(queue.window_s)}`} />
          <Stat label="sequences" value={percent(load.num_running / capacity)} note={`${count(load.num_running)} of ${count(capacity)}`} />
          <Stat label="busy" value={percent(done.share)} note="share of time in a step" />
          <Stat label="MBU" name="mbu" value={machine && done.spent ? percent(per(done.read) / machine.peak.bandwidth_bytes_per_s) : "–"} note={done.spent ? `${bytes(per(done.read))}/s${machine ? ` of ${bytes(machine.peak.bandwidth_bytes_per_s)}/s` : " read"}` : "no step lately"} title="Bytes of weights and KV that steps read a second, of what this machine was measured to read" />
          <Stat label="MFU" name="mfu" value={flops && done.spent ? percent(per(done.operations) / flops) : "–"} note={done.spent ? `${significant(per(done.operations) / 1e9)}${flops ? ` of ${significant(flops / 1e9)}` : ""} GFLOP/s` : "no step lately"} title="Two operations a parameter and token, of what this machine was measured to compute" />
          {power.watts !== null && <Stat label="energy" name="energy" value={queue.ended_per_s ? `${significant(power.watts / queue.ended_per_s)} J` : "–"} note={`a request; ${significant(power.watts)} W`} title="What processors and GPUs of this machine take, over the requests that end a second" />}
          {power.dollars_per_hour !== null && <Stat label="price" name="price" value={queue.ended_per_s ? money(power.dollars_per_hour / 3600 / queue.ended_per_s) : "–"} note={`a request; ${money(power.dollars_per_hour)} an hour`} title="By price-per-hour, over the requests that end a second" />}
        </Stats>
        {machine === null && (
          <div class="row">
            <Button kind="s" disabled={busy} onClick={() => void ask(true)}>
              {busy ? "Measuring" : "Measure this machine"}
            </Button>
            <span class="small muted">
              MBU and MFU need to know what this machine reaches: some seconds, once, while nothing is answered. <code>penstock profile</code> does it, too.
            </span>
          </div>
        )}
        {machine && <p class="tiny faint">Ceilings: {machine.source}</p>}
        {fault && <Note kind="bad">{fault}</Note>}
      </div>
    </Card>
  );
}
