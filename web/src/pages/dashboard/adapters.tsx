/** Adapters over the model: which lie on the device, which are asked for, how often one had to be read. */
import type { JSX } from "preact";
import { count } from "../../format";
import { useLive } from "../../live";
import { Badge, Card, Table } from "../../ui/kit";

export function Adapters(): JSX.Element | null {
  const found = useLive(7)?.adapters;
  if (!found) return null;
  const waiting = found.waiting ? ` ${count(found.waiting)} requests wait for theirs.` : "";
  return (
    <Card
      title="Adapters"
      about={`${count(found.num_known)} are served, at most ${count(found.max_resident)} on the device at once: read ${count(found.read)} times, laid down ${count(found.placed)}, taken off ${count(found.evicted)}.${waiting}`}
    >
      <Table
        label="Adapters"
        columns={[["adapter", ""], ["lies", ""], ["requests", "n"]]}
        rows={found.rows.map((one) => [
          <span key="n" class="mono">{one.name}</span>,
          one.is_resident ? <Badge key="r" kind="good">on the device</Badge> : <span key="r" class="muted">on the host or disk</span>,
          count(one.num_open),
        ])}
      />
    </Card>
  );
}
