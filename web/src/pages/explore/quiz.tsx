/** Questions with computed answers; a wrong one is told why. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, told } from "../../api";
import { Button, Card, Note } from "../../ui/kit";

export interface Question {
  id: string;
  area: string;
  text: string;
  options: { text: string; is_right: boolean; reason: string }[];
}

export function Quiz({ area, title }: { area: string; title?: string }): JSX.Element {
  const [seed, setSeed] = useState(() => Math.floor(Math.random() * 1000));
  const [questions, setQuestions] = useState<Question[]>([]);
  const [fault, setFault] = useState("");
  useEffect(() => {
    get<{ questions: Question[] }>(`/app/v1/quizzes/${encodeURIComponent(area)}?seed=${seed}`).then(
      (found) => setQuestions(found.questions),
      (problem: unknown) => setFault(told(problem)),
    );
  }, [area, seed]);
  return (
    <Card
      title={title ?? "Check yourself"}
      aside={
        <Button kind="quiet s" onClick={() => setSeed(seed + 1)}>
          New numbers
        </Button>
      }
    >
      {fault && <Note kind="bad">{fault}</Note>}
      <div class="stack">
        {questions.map((question) => (
          <One key={`${question.id} ${seed}`} question={question} />
        ))}
      </div>
    </Card>
  );
}

function One({ question }: { question: Question }): JSX.Element {
  const [chosen, setChosen] = useState<number | null>(null);
  const option = chosen === null ? null : question.options[chosen]!;
  const isOver = option?.is_right ?? false;
  return (
    <fieldset class="quiz">
      <legend>{question.text}</legend>
      <div class="quiz-options">
        {question.options.map((one, number) => (
          <button key={number} type="button" disabled={isOver} class={`quiz-option ${(isOver && one.is_right) ? "right" : chosen === number && !one.is_right ? "wrong" : ""}`} onClick={() => setChosen(number)}>
            <span aria-hidden="true">{isOver && one.is_right ? "✓" : chosen === number && !one.is_right ? "✗" : "○"}</span>
            {one.text}
          </button>
        ))}
      </div>
      {option && (
        <p class="why" role="status">
          <b>{option.is_right ? "Right." : "No."}</b> {option.reason}
        </p>
      )}
    </fieldset>
  );
}
