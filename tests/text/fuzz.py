"""Grammars and tool texts at random, for as long as one likes: `python -m tests.text.fuzz SECONDS [SEED [MODEL]]`.

Whatever is made up is compiled or refused, followed or faulted; a tool text is read alike in any pieces. What breaks that is
printed with its seed, which goes into `KEPT` and so into the suite.
"""

import json
import random
import sys
import time

from penstock.errors import RequestError
from penstock.runtime.text.grammar.kinds import KINDS
from penstock.runtime.text.tools.formats import FORMATS
from tests.text.grammar import walk
from tests.text.grammar.schemas import make_schema
from tests.text.grammar.walk import compiler, tokenizer, write
from tests.text.tools.samples import SAMPLES
from tests.text.tools.test_parser import cuts, parsed

KEPT = (1, 2, 3, 5, 8, 13, 1002)
PIECES = (
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "*",
    "+",
    "?",
    "|",
    "\\",
    "{1,9}",
    "a",
    ".",
    "^",
    "$",
    "start:",
    "root ::=",
    '"x"',
    "/",
    "\n",
)
PIECES += (
    "%json {}",
    "<|im_end|>",
    "<[5]>",
    "@a",
    "&",
    "~",
    "é",
    "\x00",
    "(?i)",
    "\\d",
    "\\p{L}",
    "[lazy]",
    "[max_tokens=3]",
)


def spoilt(text: str, source: random.Random) -> str:
    """The text with some bytes lost, doubled or put in."""
    for _ in range(source.randrange(1, 6)):
        place = source.randrange(len(text) + 1)
        way = source.randrange(3)
        if way == 0:
            text = text[:place] + text[place + source.randrange(1, 9) :]
        elif way == 1:
            text = text[:place] + source.choice(PIECES) + text[place:]
        else:
            text = text[:place] + text[place : place + 20] * 2 + text[place:]
    return text


def one(seed: int) -> None:
    source = random.Random(seed)
    kind = source.choice([name for name in KINDS if name != "composed"])
    if kind.startswith("json_schema"):
        text = json.dumps(make_schema(seed))
        text = spoilt(text, source) if source.random() < 0.7 else text
    else:
        text = "".join(source.choice(PIECES) for _ in range(source.randrange(1, 25)))
    try:
        matcher = compiler().compile(kind, text)
    except RequestError:
        matcher = None
    if matcher is not None:
        matcher.advance(tokenizer().encode(source.choice(('{"a": 1', "aaa", "x", "é{")), special=False))
        if not matcher.fault:
            write(matcher, seed, 20)
    sample = source.choice(SAMPLES)
    spoilt_text = spoilt(sample.text, source)
    format = source.choice((sample.format, *FORMATS))
    whole = parsed(format, [spoilt_text])
    assert parsed(format, list(spoilt_text)) == whole == parsed(format, cuts(spoilt_text, seed))


def main(seconds: float, seed: int) -> int:
    end_s = time.monotonic() + seconds
    first = seed
    while time.monotonic() < end_s:
        try:
            one(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        seed += 1
    print(f"{seed - first} cases from seed {first} on, none broken")
    return 0


if __name__ == "__main__":
    walk.MODEL = sys.argv[3] if len(sys.argv) > 3 else walk.MODEL
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
