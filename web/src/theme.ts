/** Dark or light: as the system says until somebody chooses. Colours of drawings are read from the style sheet. */
import { computed, effect, signal } from "@preact/signals";

const KEY = "penstock.theme";
const system = matchMedia("(prefers-color-scheme: light)");
const systemIsLight = signal(system.matches);
system.addEventListener("change", () => (systemIsLight.value = system.matches));
const chosen = signal<string | null>(localStorage.getItem(KEY));

export const theme = computed(() => chosen.value ?? (systemIsLight.value ? "light" : "dark"));

export function toggleTheme(): void {
  chosen.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, chosen.value);
}

export interface Colours {
  text: string;
  muted: string;
  faint: string;
  line: string;
  panel: string;
  sunken: string;
  prompt: string;
  decode: string;
  cached: string;
  draft: string;
  bad: string;
  idle: string;
  accent: string;
}

function read(): Colours {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: of("text"),
    muted: of("muted"),
    faint: of("faint"),
    line: of("line"),
    panel: of("panel"),
    sunken: of("sunken"),
    prompt: of("prompt"),
    decode: of("decode"),
    cached: of("cached"),
    draft: of("draft"),
    bad: of("bad"),
    idle: of("idle"),
    accent: of("accent"),
  };
}

export const colours = signal<Colours>(read());
effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
  colours.value = read();
});
/** Once the style sheet has come. */
export function readColours(): void {
  colours.value = read();
}
