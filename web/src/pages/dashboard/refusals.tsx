/** Who was turned away, and why; and what the prefix cache had no more of, and why. */
import type { JSX } from "preact";
import { count, percent } from "../../format";
import { live, refusals, useLive } from "../../live";
import { Card, Table } from "../../ui/kit";

export function Refusals(): JSX.Element {
  const rows = refusals.value;
  return (
    <Card title="Refusals" about="Requests that were turned away or failed: the latest two hundred since the server started, never what they asked.">
      {rows.length === 0 ? (
        <p class="muted small">None.</p>
      ) : (
        <Table
          label="Refusals"
          columns={[["when", ""], ["status", "n"], ["code", ""], ["why", ""], ["path", ""], ["request", ""]]}
          rows={rows.slice(0, 40).map((one) => [
            <span key="t" class="mono">{new Date(1000 * one.time_s).toLocaleTimeString()}</span>,
            one.status,
            one.code,
            one.message,
            <span key="p" class="mono small">{one.path}</span>,
            <span key="r" class="mono small">{one.tenant ? `${one.tenant} ` : ""}{one.call_id}</span>,
          ])}
        />
      )}
    </Card>
  );
}

export function Misses(): JSX.Element {
  const { misses, rates } = (useLive(6) ?? live.peek())!;
  const hit = rates.prompt_per_s > 0 ? percent(rates.cached_per_s / rates.prompt_per_s) : "–";
  return (
    <Card title="Prefix cache" about={`Of the prompt tokens of the last ten seconds ${hit} were cached. Why no more was found, by requests that ended; a request's own row names the token that differed.`}>
      {misses.length === 0 ? <p class="muted small">Nothing has missed lately.</p> : <Table label="Why prefixes missed" columns={[["why", ""], ["requests", "n"], ["tokens computed", "n"]]} rows={misses.map(([why, requests, tokens]) => [why, count(requests), count(tokens)])} />}
    </Card>
  );
}
