/** What is asked of the model beside the words, and the same as code. */
import { apiKey, chosenModel } from "../../api";

export interface Settings {
  system: string;
  temperature: number;
  top_p: number;
  top_k: number;
  min_p: number;
  presence_penalty: number;
  frequency_penalty: number;
  repetition_penalty: number;
  max_tokens: number;
  seed: string;
  stop: string;
  logprobs: boolean;
  schema: string;
  tools: string;
}

export const DEFAULTS: Settings = {
  system: "",
  temperature: 0.7,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  max_tokens: 256,
  seed: "",
  stop: "",
  logprobs: true,
  schema: "",
  tools: "",
};

export interface Message {
  role: string;
  content: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export class SettingFault extends Error {}

function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new SettingFault(`${what} is not valid JSON; mend it or leave it empty`);
  }
}

/** The body of a chat completion, fields that say nothing left out. */
export function body(settings: Settings, messages: Message[]): Record<string, unknown> {
  const found: Record<string, unknown> = {
    messages: settings.system ? [{ role: "system", content: settings.system }, ...messages] : messages,
    temperature: settings.temperature,
    max_tokens: settings.max_tokens,
  };
  if (chosenModel.value) found["model"] = chosenModel.value;
  if (settings.top_p < 1) found["top_p"] = settings.top_p;
  if (settings.top_k > 0) found["top_k"] = settings.top_k;
  if (settings.min_p > 0) found["min_p"] = settings.min_p;
  if (settings.presence_penalty) found["presence_penalty"] = settings.presence_penalty;
  if (settings.frequency_penalty) found["frequency_penalty"] = settings.frequency_penalty;
  if (settings.repetition_penalty !== 1) found["repetition_penalty"] = settings.repetition_penalty;
  if (settings.seed.trim()) found["seed"] = Number(settings.seed);
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) found["stop"] = stops;
  if (settings.schema.trim()) {
    found["response_format"] = {
      type: "json_schema",
      json_schema: { name: "answer", strict: true, schema: parsed(settings.schema, "the schema") },
    };
  }
  if (settings.tools.trim()) {
    const tools = parsed(settings.tools, "the list of tools");
    found["tools"] = Array.isArray(tools) ? tools : [tools];
  }
  return found;
}

/** As it goes over the wire when this page streams it. */
export function streamed(settings: Settings, messages: Message[]): Record<string, unknown> {
  return {
    ...body(settings, messages),
    ...(settings.logprobs ? { logprobs: true, top_logprobs: 10, return_token_ids: true } : {}),
    stream: true,
    stream_options: { include_usage: true, include_progress: true },
    return_timings: true,
  };
}

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(origin: string, what: Record<string, unknown>): string {
  const key = apiKey.value ? ' -H "authorization: Bearer $PENSTOCK_API_KEY"' : "";
  return `curl ${origin}/v1/chat/completions -H 'content-type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(what, null, 2))}`;
}

const EXTRA = ["top_k", "min_p", "repetition_penalty"];

export function asPython(origin: string, model: string, what: Record<string, unknown>): string {
  const extra = Object.fromEntries(EXTRA.filter((name) => name in what).map((name) => [name, what[name]]));
  const plain = Object.entries(what).filter(([name]) => !EXTRA.includes(name) && name !== "model");
  const lines = [`    model=${JSON.stringify(model)},`, ...plain.map(([name, value]) => `    ${name}=${python(value)},`)];
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra)},`);
  const key = apiKey.value ? 'os.environ["PENSTOCK_API_KEY"]' : '"none"';
  return `${apiKey.value ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${origin}/v1`)}, api_key=${key})
answer = client.chat.completions.create(
${lines.join("\n")}
)
print(answer.choices[0].message.content)`;
}

function python(value: unknown): string {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value as object).map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export function asJavaScript(origin: string, what: Record<string, unknown>): string {
  return `const response = await fetch(${JSON.stringify(`${origin}/v1/chat/completions`)}, {
  method: "POST",
  headers: { "content-type": "application/json"${apiKey.value ? ', authorization: "Bearer " + process.env.PENSTOCK_API_KEY' : ""} },
  body: JSON.stringify(${JSON.stringify(what, null, 2).replaceAll("\n", "\n  ")}),
});
console.log((await response.json()).choices[0].message.content);`;
}
