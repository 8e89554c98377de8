/** The sampling panel. */
import type { JSX } from "preact";
import { Check, Slider, TextField } from "../../ui/kit";
import type { Settings } from "./settings";

const SCHEMA = '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}, "people": {"type": "integer", "minimum": 0, "maximum": 50000000}}, "required": ["city", "people"], "additionalProperties": false}';
const TOOLS = '[{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]';

export function Panel({ value, onChange, brief }: { value: Settings; onChange: (next: Settings) => void; brief?: boolean }): JSX.Element {
  const set = <K extends keyof Settings>(name: K) => (next: Settings[K]) => onChange({ ...value, [name]: next });
  return (
    <div class="fields">
      {!brief && <TextField label="System message" value={value.system} rows={2} onChange={set("system")} />}
      <Slider label="Temperature" value={value.temperature} min={0} max={2} step={0.05} onChange={set("temperature")} />
      <Slider label="Top-p" value={value.top_p} min={0.05} max={1} step={0.05} onChange={set("top_p")} />
      <Slider label="Top-k" value={value.top_k} min={0} max={100} hint="0 is off" onChange={set("top_k")} />
      <Slider label="Max tokens" value={value.max_tokens} min={1} max={4096} log onChange={set("max_tokens")} />
      <details class="more">
        <summary>More sampling</summary>
        <div class="fields">
          <Slider label="Min-p" value={value.min_p} min={0} max={1} step={0.01} onChange={set("min_p")} />
          <Slider label="Presence penalty" value={value.presence_penalty} min={-2} max={2} step={0.1} onChange={set("presence_penalty")} />
          <Slider label="Frequency penalty" value={value.frequency_penalty} min={-2} max={2} step={0.1} onChange={set("frequency_penalty")} />
          <Slider label="Repetition penalty" value={value.repetition_penalty} min={0.5} max={2} step={0.05} onChange={set("repetition_penalty")} />
          <TextField label="Seed" value={value.seed} placeholder="any" onChange={set("seed")} />
          <TextField label="Stop strings, one a line" value={value.stop} rows={2} onChange={set("stop")} />
          <Check label="Ask for log probabilities (token view)" value={value.logprobs} onChange={set("logprobs")} />
        </div>
      </details>
      {!brief && (
        <details class="more">
          <summary>JSON schema and tools</summary>
          <div class="fields">
            <TextField label="JSON schema the answer must fit" value={value.schema} rows={4} placeholder={SCHEMA} onChange={set("schema")} />
            <button type="button" class="button s" onClick={() => onChange({ ...value, schema: value.schema ? "" : SCHEMA })}>
              {value.schema ? "Clear the schema" : "Fill in an example"}
            </button>
            <TextField label="Tools the model may call" value={value.tools} rows={4} placeholder={TOOLS} onChange={set("tools")} />
            <button type="button" class="button s" onClick={() => onChange({ ...value, tools: value.tools ? "" : TOOLS })}>
              {value.tools ? "Clear the tools" : "Fill in an example"}
            </button>
          </div>
        </details>
      )}
    </div>
  );
}
