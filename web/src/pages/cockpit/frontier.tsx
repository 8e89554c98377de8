/** The frontier of a configuration: what each user sees against what a device makes, from one user to hundreds. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { told } from "../../api";
import { count, seconds } from "../../format";
import { useLive, useStream } from "../../live";
import type { Colours } from "../../theme";
import { type Flags, only, simulate, type Simulated } from "../../tools";
import { type Curve, type Dot, Frontier, type FrontierPoint, present } from "../../ui/frontier";
import { Button, Card, Note, Spinner } from "../../ui/kit";
import { devicesOf } from "./figures";

const USERS = [1, 4, 16, 64, 256];
const LARGEST_TENSOR = 8;
const COLOURS: (keyof Colours)[] = ["decode", "cached", "draft"];

interface Layout {
  name: string;
  flags: Flags;
}

/** A configuration, and the same with more devices a replica; of two that are compared, each as it is. */
function layoutsOf(sides: { flags: Flags }[]): Layout[] {
  if (sides.length > 1) return sides.map(({ flags }, place) => ({ name: "AB"[place]!, flags }));
  const { flags } = sides[0]!;
  const tensor = Number(flags["tensor"] ?? 1);
  return [1, 2, 4].map((factor) => factor * tensor).filter((wide) => wide <= LARGEST_TENSOR).map((wide) => ({ name: `tensor ${wide}`, flags: { ...flags, tensor: wide } }));
}

/** Users who ask again as soon as they are answered: so many sequences at once. */
function loadOf(flags: Flags, each: number): Flags {
  const users = each * Number(flags["replicas"] ?? 1);
  const next: Flags = { ...flags, users, "think-s": 0, "num-requests": Math.min(Math.max(6 * users, 48), 2000) };
  for (const name of ["rate", "burstiness", "deadline-s", "scale-to", "scale-by", "cold-start-s"]) delete next[name]; // eslint-disable-line @typescript-eslint/no-dynamic-delete
  return next;
}

function pointOf(run: Simulated, flags: Flags, text: string): FrontierPoint {
  const { summary } = only(run);
  return { user: 1 / summary.tpot.p50, all: summary.output_tokens_per_s / devicesOf(flags), text };
}

export function CockpitFrontier({ sides }: { sides: { run: Simulated; flags: Flags }[] }): JSX.Element {
  const [curves, setCurves] = useState<Curve[]>([]);
  const [busy, setBusy] = useState("");
  const [fault, setFault] = useState("");
  const abort = useRef<AbortController | null>(null);
  const key = JSON.stringify(sides.map((one) => one.flags));
  useEffect(() => {
    setCurves([]); // of other settings
    return () => abort.current?.abort();
  }, [key]);
  const run = async () => {
    const controller = (abort.current = new AbortController());
    const found: Curve[] = [];
    setFault("");
    for (const [place, { name, flags }] of layoutsOf(sides).entries()) {
      const points: FrontierPoint[] = [];
      found.push({ label: name, colour: COLOURS[place]!, points });
      try {
        for (const users of USERS) {
          setBusy(`${name}, ${users} users a replica`);
          const load = loadOf(flags, users);
          const done = await simulate(load, { lane: "frontier", signal: controller.signal });
          points.push(pointOf(done, load, `${name}, ${count(users)} users a replica, TPOT ${seconds(only(done).summary.tpot.p50)}`));
          if (!controller.signal.aborted) setCurves(found.map((curve) => ({ ...curve, points: [...curve.points] })));
        }
      } catch (problem) {
        if (controller.signal.aborted) break;
        setFault(`${name}: ${told(problem)}`);
      }
    }
    setBusy("");
  };
  return (
    <Card title="Frontier" about="Tokens a second of a device against tokens a second of each user: every configuration trades one for the other." aside={busy ? <Spinner text={busy} /> : undefined}>
      <div class="stack">
        {fault && <Note kind="warn">{fault}</Note>}
        {curves.length > 0 ? (
          <Drawn curves={curves} sides={sides} />
        ) : (
          <p class="small muted">
            {USERS.join(", ")} users a replica who ask again as soon as they are answered, {sides.length > 1 ? "for A and for B" : "with one, two and four times as many devices a replica"}.
          </p>
        )}
        <div class="row">
          <Button disabled={busy !== ""} onClick={() => void run()}>
            Draw the frontier
          </Button>
        </div>
      </div>
    </Card>
  );
}

function Drawn({ curves, sides }: { curves: Curve[]; sides: { run: Simulated; flags: Flags }[] }): JSX.Element {
  useEffect(useStream, []);
  const now = useLive(1);
  const dots = sides.map(({ run, flags }, place): Dot => ({ ...pointOf(run, flags, "the run above"), label: sides.length > 1 ? `${"AB"[place]} at its load` : "at its load", colour: "accent", shape: "diamond" }));
  return <Frontier label="Frontier of the configuration" allLabel="tokens/s a device" curves={curves} dots={[...dots, ...present(now)]} />;
}
