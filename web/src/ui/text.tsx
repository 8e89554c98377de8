/** A model's answer, shown as text: fences and inline code are set apart, nothing is ever parsed as HTML. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { count } from "../format";
import { Button } from "./kit";

const SHOWN = 40_000;

export function Answer({ text, streaming }: { text: string; streaming?: boolean }): JSX.Element {
  const [all, setAll] = useState(false);
  const isLong = text.length > SHOWN;
  // A long text is not split into parts: that would be done again for every token.
  const shown = isLong && !all ? text.slice(streaming ? -SHOWN : 0, streaming ? undefined : SHOWN) : text;
  return (
    <div class="answer">
      {isLong && !all && (
        <p class="small muted">
          {count(text.length)} characters; the {streaming ? "last" : "first"} {count(SHOWN)} are shown.{" "}
          {text.length < 2_000_000 && (
            <Button kind="quiet s" onClick={() => setAll(true)}>
              Show all
            </Button>
          )}
          <Button kind="quiet s" onClick={() => download(text)}>
            Save as a file
          </Button>
        </p>
      )}
      {isLong ? <div class="prose">{shown}</div> : parts(shown).map((part, number) => <Part key={number} {...part} />)}
      {streaming && <span class="caret" aria-hidden="true" />}
    </div>
  );
}

function download(text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = "answer.txt";
  link.click();
  URL.revokeObjectURL(link.href);
}

interface Piece {
  text: string;
  kind: "prose" | "code";
}

function parts(text: string): Piece[] {
  return text.split(/^```[^\n]*\n?/m).map((piece, number) => ({ text: piece, kind: number % 2 ? ("code" as const) : ("prose" as const) })).filter((piece) => piece.text);
}

function Part({ text, kind }: Piece): JSX.Element {
  if (kind === "code") return <pre class="code" tabIndex={0}>{text.replace(/\n$/, "")}</pre>;
  return <div class="prose">{inline(text)}</div>;
}

function inline(text: string): (string | JSX.Element)[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, number) => {
    if (number % 2 === 0) return piece;
    return piece.startsWith("`") ? <code key={number}>{piece.slice(1, -1)}</code> : <b key={number}>{piece.slice(2, -2)}</b>;
  });
}
