"""What a model reads and writes, apart from its weights: tokenizer, chat template, way of marking reasoning."""

from typing import NamedTuple

from penstock.text.stream.reasoning import ReasoningStyle
from penstock.text.template.chat import ChatTemplate
from penstock.text.tokenizer.tokenizer import Tokenizer


class Text(NamedTuple):
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    """None for a model that was not made for chats."""
    style: ReasoningStyle | None = None
