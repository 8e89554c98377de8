/** Which model is asked and looked at, where several are served, and where it stands. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { about, list, listed, refresh, type Resident } from "../about";
import { chosenModel } from "../api";
import { seconds } from "../format";
import { put, query } from "../router";
import { Bar, Note, Select, Spinner } from "./kit";

const LOOK_MS = 1500;

function choose(id: string): void {
  chosenModel.value = id;
  put("model", id);
  void refresh();
}

/** Looks after the list while it is shown: models come and go. */
export function ModelPicker(): JSX.Element | null {
  useEffect(() => {
    const wanted = query.peek().get("model");
    void list().then(() => {
      if (wanted && listed.peek().some((one) => one.id === wanted)) choose(wanted);
    });
    const timer = setInterval(() => {
      if (listed.peek().length < 2 || document.hidden) return;
      void list();
      void refresh();
    }, LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  const found = listed.value;
  if (found.length < 2) return null;
  return <Select label="Model" value={chosenModel.value || found[0]!.id} options={found.map((one) => [one.id, one.status ? `${one.id} (${one.status.value})` : one.id] as const)} onChange={choose} />;
}

/** Of the chosen model, if it is not ready: whether it is loaded, how far that is, or why it cannot be. */
export function Standing(): JSX.Element | null {
  const name = chosenModel.value || about.value?.model;
  const one = about.value?.residents?.find((each) => each.name === name);
  if (!one || one.state === "ready") return null;
  if (one.state === "loading") return <Loading one={one} />;
  if (one.state === "failed") return <Note kind="bad" title={`${one.name} could not be loaded`}>{one.reason}</Note>;
  return <Note title={`${one.name} is ${one.state}`}>The first request that names it loads it{one.load_s ? `; the last time that took ${seconds(one.load_s)}` : ""}.</Note>;
}

function Loading({ one }: { one: Resident }): JSX.Element {
  const share = one.load_s && one.loading_s !== null ? Math.min(one.loading_s / one.load_s, 0.99) : null;
  return (
    <Note title={`${one.name} is being loaded`}>
      <Spinner text={`${one.phase || "begun"}${one.loading_s === null ? "" : `, ${seconds(one.loading_s)}`}${one.load_s ? ` of about ${seconds(one.load_s)}` : ""}`} />
      {share !== null && <Bar share={share} label={`${one.name} loaded`} plain />}
    </Note>
  );
}
