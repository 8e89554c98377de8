/** Which model is asked and looked at, where several are served. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { chosenModel, list, listed, refresh } from "../about";
import { Select } from "./kit";

export function ModelPicker(): JSX.Element | null {
  useEffect(() => void list(), []);
  const found = listed.value;
  if (found.length < 2) return null;
  const choose = (id: string) => {
    chosenModel.value = id;
    void refresh();
  };
  return <Select label="Model" value={chosenModel.value || found[0]!.id} options={found.map((one) => [one.id, one.status ? `${one.id} (${one.status.value})` : one.id] as const)} onChange={choose} />;
}
