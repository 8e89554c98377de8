/** Requests in progress and those that ended lately. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post, told } from "../../api";
import { count, percent, seconds, significant } from "../../format";
import type { OpenRow, RequestRow } from "../../live";
import { Bar, Button, Card, Note, Segments } from "../../ui/kit";

export function Requests(props: { rows: OpenRow[]; ended: RequestRow[]; picked: number | null; onPick: (id: number) => void }): JSX.Element {
  const [shown, setShown] = useState<"open" | "ended">("open");
  const [fault, setFault] = useState("");
  const cancel = async (id: number) => {
    try {
      await post(`/app/v1/requests/${id}/cancel`, {});
      setFault("");
    } catch (problem) {
      setFault(told(problem));
    }
  };
  return (
    <Card
      title="Requests"
      aside={
        <Segments
          label="Which requests"
          value={shown}
          options={[["open", `In progress (${props.rows.length})`], ["ended", `Ended (${props.ended.length})`]]}
          onChange={setShown}
        />
      }
    >
      {fault && <Note kind="bad">{fault}</Note>}
      {shown === "open" ? <Open rows={props.rows} picked={props.picked} onPick={props.onPick} onCancel={(id) => void cancel(id)} /> : <Ended rows={props.ended} picked={props.picked} onPick={props.onPick} />}
    </Card>
  );
}

function Open(props: { rows: OpenRow[]; picked: number | null; onPick: (id: number) => void; onCancel: (id: number) => void }): JSX.Element {
  if (!props.rows.length) return <p class="empty">Nothing is being answered. Requests appear here from their first byte on.</p>;
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Requests in progress">
      <table>
        <thead>
          <tr>
            <th>Request</th>
            <th>Phase</th>
            <th class="n">Prompt</th>
            <th class="n">Cached</th>
            <th class="n">Tokens</th>
            <th class="n">tokens/s</th>
            <th class="n">TTFT</th>
            <th class="n">Blocks</th>
            <th class="n">Age</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {props.rows.slice(0, 100).map((row) => (
            <tr key={row.request_id} class={row.request_id === props.picked ? "pick" : ""}>
              <td>
                <Button kind="quiet s" onClick={() => props.onPick(row.request_id)}>
                  #{row.request_id}
                </Button>
              </td>
              <td>
                <Phase row={row} />
              </td>
              <td class="n">{count(row.num_prompt)}</td>
              <td class="n">{row.num_cached ? percent(row.num_cached / row.num_prompt) : "–"}</td>
              <td class="n">{count(row.num_tokens)}</td>
              <td class="n">{row.tpot_s ? significant(1 / row.tpot_s) : "–"}</td>
              <td class="n">{seconds(row.ttft_s)}</td>
              <td class="n">{count(row.num_blocks)}</td>
              <td class="n">{seconds(row.age_s)}</td>
              <td class="n">
                <Button kind="quiet s" onClick={() => props.onCancel(row.request_id)}>
                  Cancel<span class="sr"> request {row.request_id}</span>
                </Button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Phase({ row }: { row: OpenRow }): JSX.Element {
  if (row.phase === "queued") return <span class="badge">queued{row.place >= 0 && `, place ${row.place + 1}`}{row.eta_s ? `, ${seconds(row.eta_s)}` : ""}</span>;
  if (row.phase === "decode") return <span class="badge good">decode</span>;
  return (
    <span class="badge warn">
      prefill {percent(row.prefill_fraction)}
      <Bar share={Math.min(row.prefill_fraction, 0.79)} label="Prompt computed" />
    </span>
  );
}

function Ended(props: { rows: RequestRow[]; picked: number | null; onPick: (id: number) => void }): JSX.Element {
  if (!props.rows.length) return <p class="empty">Nothing has ended since somebody looked.</p>;
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Requests that ended">
      <table>
        <thead>
          <tr>
            <th>Request</th>
            <th>Outcome</th>
            <th class="n">Prompt</th>
            <th class="n">Cached</th>
            <th class="n">Tokens</th>
            <th class="n">TTFT</th>
            <th class="n">TPOT</th>
            <th>Why the cache gave no more</th>
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={row.request_id} class={row.request_id === props.picked ? "pick" : ""}>
              <td>
                <Button kind="quiet s" onClick={() => props.onPick(row.request_id)}>
                  #{row.request_id}
                </Button>
              </td>
              <td>{row.outcome}</td>
              <td class="n">{count(row.num_prompt)}</td>
              <td class="n">{count(row.num_cached)}</td>
              <td class="n">{count(row.num_tokens)}</td>
              <td class="n">{seconds(row.ttft_s)}</td>
              <td class="n">{seconds(row.tpot_s)}</td>
              <td class="small">{miss(row)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function miss(row: Pick<RequestRow, "miss" | "differs">): string {
  if (!row.miss) return "everything cacheable was found";
  return row.differs ? `${row.miss}: token ${row.differs[0]} is ${row.differs[1]}, cached is ${row.differs[2]}` : row.miss;
}
