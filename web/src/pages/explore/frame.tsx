/** What all explorations share: a question, controls beside a drawing, numbers, an insight after first use, a quiz, the same as a command. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useRef } from "preact/hooks";
import { Card, Command, Note, PageHead, type Source, SourceBadge } from "../../ui/kit";
import { Quiz } from "./quiz";

export interface Card_ {
  number: number;
  slug: string;
  title: string;
  question: string;
  sources: Source[];
  insight: string;
  area: string;
}

export function Frame(props: {
  card: Card_;
  controls: ComponentChildren;
  children: ComponentChildren;
  command?: string;
  /** What moved: the insight shows once it did. */
  state: unknown;
  note?: ComponentChildren;
}): JSX.Element {
  const { card } = props;
  const first = useRef(JSON.stringify(props.state));
  const [used, setUsed] = useState(false);
  useEffect(() => {
    if (JSON.stringify(props.state) !== first.current) setUsed(true);
  }, [props.state]);
  return (
    <div class="page">
      <PageHead title={`${card.number}. ${card.title}`} about={card.question}>
        {card.sources.map((source) => (
          <SourceBadge key={source} source={source} />
        ))}
        <a class="button s" href="#/explore">
          All explorations
        </a>
      </PageHead>
      <div class="split">
        <Card title="Turn these">
          <div class="fields">{props.controls}</div>
        </Card>
        <div class="stack">
          {props.children}
          {used ? (
            <Note kind="insight" title="Insight">
              {card.insight}
            </Note>
          ) : (
            <p class="small faint">Turn something first; what it teaches appears here.</p>
          )}
          {props.note}
          {props.command && <Command text={props.command} />}
          <Quiz area={card.area} />
        </div>
      </div>
    </div>
  );
}
