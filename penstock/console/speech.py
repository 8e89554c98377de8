"""A model's words on a screen: nothing in them may steer a terminal. A pipe gets them as they are."""

import os
import sys
from typing import TextIO

from penstock.console.show import printable

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def write_text(text: str, stream: TextIO | None = None) -> None:
    """Show a piece of an answer at once."""
    stream = stream or sys.stdout
    stream.write(shown(text) if stream.isatty() else text)
    stream.flush()


def dimmed(text: str, stream: TextIO) -> str:
    """A remark beside the answer, in grey where there are colours."""
    if not stream.isatty():
        return text
    return shown(text) if os.environ.get("NO_COLOR") else f"{DIM}{shown(text)}{PLAIN}"


def shown(text: str) -> str:
    return "\t".join(map(printable, text.split("\t")))
