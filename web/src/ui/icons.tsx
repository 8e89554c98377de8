/** Small drawings beside words; never alone. */
import type { JSX } from "preact";

const PATHS: Record<string, string> = {
  chat: "M4 5h16v11H9l-5 4z",
  gauge: "M4 18a8 8 0 1 1 16 0 M12 18l4-6",
  cockpit: "M3 17h18 M6 17V9 M12 17V5 M18 17v-6 M4 9h4 M10 5h4 M16 11h4",
  compass: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18z M15.5 8.5l-2 5-5 2 2-5z",
  sums: "M6 3h12v18H6z M9 7h6 M9 12h1 M14 12h1 M9 16h1 M14 16h1",
  tree: "M12 4v5 M12 9H6v4 M12 9h6v4 M6 13v6 M18 13v6 M4 19h4 M16 19h4",
  plan: "M4 19V5 M4 19h16 M8 15l4-5 3 3 5-7",
  bench: "M13 3L5 13h6l-1 8 8-11h-6z",
  fleet: "M4 5h16v5H4z M4 14h16v5H4z M8 7.5h.01 M8 16.5h.01",
  layers: "M4 6h10 M8 11h12 M4 16h7 M13 16h7",
  menu: "M4 7h16 M4 12h16 M4 17h16",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8z M12 3v2 M12 19v2 M3 12h2 M19 12h2 M5.6 5.6l1.4 1.4 M17 17l1.4 1.4 M18.4 5.6L17 7 M7 17l-1.4 1.4",
  moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  list: "M4 6h16 M4 12h10 M4 18h7 M17 15l2 2 3-4",
};

export function Icon({ name }: { name: string }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
