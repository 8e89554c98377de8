/** A part of a page that knows whether it can be seen: the browser lays out and paints only those that can. */
import { type ComponentChildren, createContext, type JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";

export interface Sight {
  isSeen: boolean;
  /** Called when it comes into sight. */
  listeners: Set<() => void>;
}
export const SightContext = createContext<Sight>({ isSeen: true, listeners: new Set() });

export function Part({ children }: { children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  const sight = useMemo((): Sight => ({ isSeen: true, listeners: new Set() }), []);
  useEffect(() => {
    const observer = new IntersectionObserver(
      (entries) => {
        const isSeen = entries.at(-1)!.isIntersecting;
        const isNew = isSeen && !sight.isSeen;
        sight.isSeen = isSeen;
        if (isNew) for (const listener of sight.listeners) listener();
      },
      { rootMargin: "200px" },
    );
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, [sight]);
  return (
    <div class="part" ref={ref}>
      <SightContext.Provider value={sight}>{children}</SightContext.Provider>
    </div>
  );
}
