/** All quizzes, by area. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { keep, kept } from "../router";
import { PageHead, Segments } from "../ui/kit";
import { Quiz } from "./explore/quiz";

export function Quizzes(): JSX.Element {
  const [areas, setAreas] = useState<string[]>([]);
  const [area, setArea] = useState(kept({ area: "token cost" }).area);
  useEffect(() => void get<{ areas: string[] }>("/app/v1/quizzes").then((found) => setAreas(found.areas), () => undefined), []);
  return (
    <div class="page">
      <PageHead title="Quizzes" about="Answers are worked out by the calculators, numbers drawn anew each time. Every wrong answer says why it is wrong." />
      <Segments label="Area" value={area} options={areas.map((one) => [one, one] as const)} onChange={(next) => { setArea(next); keep({ area: next }); }} />
      <Quiz key={area} area={area} title={area} />
    </div>
  );
}
