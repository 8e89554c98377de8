/** Where we are: `#/page/part?key=value`. A page's state lives in the query, so a link shows what its sender saw. */
import { computed, signal } from "@preact/signals";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

const whole = computed(() => {
  const [path = "", query = ""] = hash.value.replace(/^#\/?/, "").split("?");
  return { path: path || "playground", query };
});

export const path = computed(() => whole.value.path);
export const page = computed(() => path.value.split("/")[0] ?? "");
export const part = computed(() => path.value.split("/").slice(1).join("/"));
export const query = computed(() => new URLSearchParams(whole.value.query));

export function go(to: string): void {
  location.hash = `#/${to}`;
}

/** Put state into the address without a new entry in the history. Values equal to the default are left out. */
export function keep(state: Record<string, string | number | boolean>, defaults: Record<string, unknown> = {}): void {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value !== defaults[key] && value !== "") search.set(key, String(value));
  }
  const text = search.toString();
  const next = `#/${path.peek()}${text ? `?${text}` : ""}`;
  if (next !== location.hash) {
    history.replaceState(null, "", next);
    hash.value = next;
  }
}

/** One value of the query, the others left as they are; empty takes it out. */
export function put(name: string, value: string): void {
  const search = new URLSearchParams(query.peek());
  if (value) search.set(name, value);
  else search.delete(name);
  keep(Object.fromEntries(search));
}

/** The query's values over the defaults, each of the kind its default is. */
export function kept<T extends Record<string, string | number | boolean>>(defaults: T): T {
  const found: Record<string, string | number | boolean> = { ...defaults };
  for (const [key, value] of Object.entries(defaults)) {
    const text = query.peek().get(key);
    if (text === null) continue;
    if (typeof value === "number") found[key] = Number.isFinite(Number(text)) ? Number(text) : value;
    else found[key] = typeof value === "boolean" ? text === "true" : text;
  }
  return found as T;
}
