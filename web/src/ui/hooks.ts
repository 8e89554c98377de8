/** State that lives in the address, and questions asked again when something moved. */
import { useEffect, useRef, useState } from "preact/hooks";
import { told } from "../api";
import { keep, kept, path } from "../router";

export function useKept<T extends Record<string, string | number | boolean>>(defaults: T): [T, (change: Partial<T>) => void, (whole: T) => void] {
  const [state, setState] = useState<T>(() => kept(defaults));
  const at = useRef(path.peek());
  const set = (whole: T) => {
    setState(whole);
    if (path.peek() === at.current) keep(whole, defaults);
  };
  return [state, (change) => set({ ...state, ...change }), set];
}

export interface Asked<T> {
  value: T | null;
  fault: string;
  busy: boolean;
}

/** The answer to a question that depends on `inputs`: asked 150 ms after they last changed, the one before given up. */
export function useAsked<T>(ask: (signal: AbortSignal) => Promise<T>, inputs: unknown, delay = 150): Asked<T> {
  const [state, setState] = useState<Asked<T>>({ value: null, fault: "", busy: true });
  const key = JSON.stringify(inputs);
  useEffect(() => {
    const abort = new AbortController();
    setState((before) => ({ ...before, busy: true }));
    const timer = setTimeout(() => {
      ask(abort.signal).then(
        (value) => !abort.signal.aborted && setState({ value, fault: "", busy: false }),
        (problem: unknown) => !abort.signal.aborted && setState((before) => ({ ...before, fault: told(problem), busy: false })),
      );
    }, delay);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [key]);
  return state;
}

/** Runs while `on`, some sixty times a second, with the seconds since the last. */
export function useFrames(on: boolean, step: (seconds: number) => void): void {
  const latest = useRef(step);
  latest.current = step;
  useEffect(() => {
    if (!on) return;
    let last = performance.now();
    let id = requestAnimationFrame(function turn(now) {
      latest.current(Math.min(Math.max((now - last) / 1000, 0), 0.1));
      last = now;
      id = requestAnimationFrame(turn);
    });
    return () => cancelAnimationFrame(id);
  }, [on]);
}
