/** Requests in progress and those that ended lately. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post, told, withModel } from "../../api";
import { count, percent, seconds, significant } from "../../format";
import type { OpenRow, RequestRow } from "../../live";
import { Bar, Button, Card, Note, Segments } from "../../ui/kit";

/** Of the rolling table: as the style sheet has them, in pixels; rows in sight, and rows ready above and below them. */
const [ROW_HEIGHT, HEAD_HEIGHT] = [42, 34];
const [ROWS_SEEN, ROWS_BESIDE] = [12, 4];

export function Requests(props: { rows: OpenRow[]; ended: RequestRow[]; picked: number | null; onPick: (id: number) => void }): JSX.Element {
  const [shown, setShown] = useState<"open" | "ended">("open");
  const [fault, setFault] = useState("");
  const cancel = async (id: number) => {
    try {
      await post(withModel(`/app/v1/requests/${id}/cancel`), {});
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

const COLUMNS: readonly (readonly [string, string])[] = [["Request", "id"], ["Phase", "phase"], ["Prompt", "n"], ["Cached", "n"], ["Tokens", "n"], ["tokens/s", "n"], ["TTFT", "n"], ["Blocks", "n"], ["Age", "n"], ["", "n"]];

/** Thousands of requests may be in progress: only those in sight are in the page. */
function Open(props: { rows: OpenRow[]; picked: number | null; onPick: (id: number) => void; onCancel: (id: number) => void }): JSX.Element {
  const { rows } = props;
  const [first, setFirst] = useState(0);
  if (!rows.length) return <p class="empty">Nothing is being answered. Requests appear here from their first byte on.</p>;
  const begin = Math.max(Math.min(first, rows.length - ROWS_SEEN), 0);
  const above = Math.max(begin - ROWS_BESIDE, 0);
  const look = (event: Event) => setFirst(Math.floor((event.currentTarget as HTMLElement).scrollTop / ROW_HEIGHT));
  return (
    <div class="table-wrap rolling" tabIndex={0} role="region" aria-label="Requests in progress" onScroll={look} style={{ height: `${Math.min(rows.length, ROWS_SEEN) * ROW_HEIGHT + HEAD_HEIGHT}px` }}>
      <div style={{ height: `${rows.length * ROW_HEIGHT + HEAD_HEIGHT}px`, paddingTop: `${above * ROW_HEIGHT}px` }}>
        <table aria-rowcount={rows.length + 1}>
          <thead>
            <tr>
              {COLUMNS.map(([name, kind]) => (
                <th key={name} class={kind} scope="col">
                  {name || <span class="sr">Cancel</span>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(above, begin + ROWS_SEEN + ROWS_BESIDE).map((row, place) => (
              <Line key={row.request_id} row={row} index={above + place + 2} isPicked={row.request_id === props.picked} onPick={props.onPick} onCancel={props.onCancel} />
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function Line({ row, index, isPicked, onPick, onCancel }: { row: OpenRow; index: number; isPicked: boolean; onPick: (id: number) => void; onCancel: (id: number) => void }): JSX.Element {
  return (
    <tr class={isPicked ? "pick" : ""} aria-rowindex={index}>
      <td>
        <Button kind="quiet s" onClick={() => onPick(row.request_id)}>
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
      <td class="n">{row.num_blocks === null ? "–" : count(row.num_blocks)}</td>
      <td class="n">{seconds(row.age_s)}</td>
      <td class="n">
        <Button kind="quiet s" onClick={() => onCancel(row.request_id)}>
          Cancel<span class="sr"> request {row.request_id}</span>
        </Button>
      </td>
    </tr>
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
  if (!props.rows.length) return <p class="empty">Nothing has ended yet.</p>;
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
