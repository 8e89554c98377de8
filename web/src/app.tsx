/** The frame: navigation, theme, key, and the page that the address names. Pages are fetched when first looked at. */
import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { about, ask, fleet, reach } from "./about";
import { apiKey, needsKey, setKey } from "./api";
import { page } from "./router";
import { theme, toggleTheme } from "./theme";
import { Icon } from "./ui/icons";
import { Button, Note, Spinner, TextField } from "./ui/kit";
import { TipLayer } from "./ui/tip";

interface Place {
  name: string;
  title: string;
  icon: string;
  load: () => Promise<ComponentType>;
  /** It looks into an engine, which a router has not. */
  needsEngine?: boolean;
}

const GROUPS: readonly (readonly [string, readonly Place[]])[] = [
  ["Use", [{ name: "playground", title: "Playground", icon: "chat", load: async () => (await import("./pages/playground/page")).Playground }]],
  [
    "Watch",
    [
      { name: "dashboard", title: "Dashboard", icon: "gauge", needsEngine: true, load: async () => (await import("./pages/dashboard/page")).Dashboard },
      { name: "fleet", title: "Fleet", icon: "fleet", load: async () => (await import("./pages/fleet")).Fleet },
    ],
  ],
  [
    "Decide",
    [
      { name: "cockpit", title: "Cockpit", icon: "cockpit", load: async () => (await import("./pages/cockpit/page")).Cockpit },
      { name: "planner", title: "Planner", icon: "plan", load: async () => (await import("./pages/planner")).Planner },
      { name: "bench", title: "Bench", icon: "bench", needsEngine: true, load: async () => (await import("./pages/bench")).Bench },
      { name: "profile", title: "Profile", icon: "layers", needsEngine: true, load: async () => (await import("./pages/profile")).Profile },
      { name: "calculators", title: "Calculators", icon: "sums", load: async () => (await import("./pages/calculators")).Calculators },
      { name: "advise", title: "Advice", icon: "tree", load: async () => (await import("./pages/advise")).Advise },
    ],
  ],
  [
    "Learn",
    [
      { name: "explore", title: "Explore", icon: "compass", load: async () => (await import("./pages/explore/page")).Explore },
      { name: "quiz", title: "Quizzes", icon: "list", load: async () => (await import("./pages/quizzes")).Quizzes },
    ],
  ],
];
const PLACES = new Map(GROUPS.flatMap(([, places]) => places).map((place) => [place.name, place]));
const loaded = new Map<string, ComponentType>();

export function App(): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => void ask(), []);
  const place = PLACES.get(page.value) ?? PLACES.get("playground")!;
  useEffect(() => {
    document.title = `${place.title} · Penstock`;
    setOpen(false);
  }, [place]);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the page
      </a>
      <div class="shell">
        <nav class={`side ${isOpen ? "open" : ""}`} aria-label="Pages" id="pages">
          <a class="brand" href="#/playground">
            <img src="/icon.svg" alt="" />
            Penstock
          </a>
          {GROUPS.map(([title, places]) => (
            <div key={title}>
              <div class="nav-title">{title}</div>
              {places.filter((one) => !(one.needsEngine && fleet.value?.is_router)).map((one) => (
                <a key={one.name} class="nav-link" href={`#/${one.name}`} aria-current={one === place ? "page" : undefined} onClick={() => setOpen(false)}>
                  <Icon name={one.icon} />
                  {one.title}
                </a>
              ))}
            </div>
          ))}
          <Foot />
        </nav>
        <div class="main">
          <div class="top">
            <Button kind="quiet" onClick={() => setOpen(!isOpen)} title="Pages">
              <Icon name="menu" />
              <span class="sr">{isOpen ? "Hide pages" : "Show pages"}</span>
            </Button>
            <strong>{place.title}</strong>
            <ThemeButton />
          </div>
          <main id="main" tabIndex={-1}>
            <Page place={place} key={place.name} />
          </main>
        </div>
      </div>
      <TipLayer />
      {needsKey.value && <KeyDialog />}
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Page({ place }: { place: Place }): JSX.Element {
  const [, setCount] = useState(0);
  const [fault, setFault] = useState("");
  useEffect(() => {
    if (loaded.has(place.name)) return;
    place.load().then(
      (component) => {
        loaded.set(place.name, component);
        setCount((value) => value + 1);
      },
      () => setFault("This page could not be fetched; is the server still running? Reload to try again."),
    );
  }, [place]);
  const Found = loaded.get(place.name);
  if (Found) return <Found />;
  return <div class="page">{fault ? <Note kind="bad">{fault}</Note> : <Spinner text="opening" />}</div>;
}

function Foot(): JSX.Element {
  const found = about.value;
  const isOk = reach.value === "ok" && found?.state === "ready";
  const state = reach.value === "gone" ? "server unreachable" : (found?.state ?? "asking");
  return (
    <div class="side-foot">
      <div class="state" title={found ? `${found.model} on ${found.device}` : ""}>
        <i class={`dot ${isOk ? "ok" : reach.value === "gone" ? "bad" : ""}`} aria-hidden="true" />
        <span>{isOk ? found.model : state}</span>
      </div>
      <div class="row between">
        <a href="/docs">API</a>
        <a href="#/advise?view=glossary">Glossary</a>
        <ThemeButton />
      </div>
    </div>
  );
}

function ThemeButton(): JSX.Element {
  const next = theme.value === "dark" ? "light" : "dark";
  return (
    <Button kind="quiet" onClick={toggleTheme} title={`Switch to ${next}`}>
      <Icon name={theme.value === "dark" ? "sun" : "moon"} />
      <span class="sr">Switch to {next}</span>
    </Button>
  );
}

function KeyDialog(): JSX.Element {
  const [key, setValue] = useState("");
  return (
    <div class="modal" role="dialog" aria-modal="true" aria-labelledby="key-title">
      <form
        class="card stack"
        onSubmit={(event) => {
          event.preventDefault();
          setKey(key.trim());
        }}
      >
        <h2 id="key-title">This server asks for a key</h2>
        <p class="muted small">It stays in this tab and goes nowhere but to this server. You see your own requests; an admin key sees all.</p>
        {apiKey.value && <Note kind="bad">The server does not accept the key that was given. Check it for missing characters, or ask whoever runs the server.</Note>}
        <TextField label="API key" value={key} onChange={setValue} />
        <Button kind="primary" submit disabled={!key.trim()}>
          Use it
        </Button>
      </form>
    </div>
  );
}
