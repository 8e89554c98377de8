"""What a model reads and writes, apart from its weights: tokenizer, chat template, way of marking reasoning, grammars."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from penstock.runtime.text.grammar.compiler import GrammarCompiler
from penstock.runtime.text.stream.reasoning import ReasoningStyle
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tools.speech import ToolSpeech


class ModelCard(NamedTuple):
    """What is shown of a model beside its name."""

    family: str = ""
    """Its architecture."""
    num_parameters: int = 0
    file_format: str = ""
    quantization: str = ""
    size_bytes: int = 0
    max_context: int = 0
    can_generate: bool = True
    embedding_size: int | None = None
    template: str = ""
    """Source of its chat template."""
    has_reasoning: bool = False
    """It marks what it thinks."""


NO_CARD = ModelCard()


class SamplingDefaults(NamedTuple):
    """How a model's makers would have tokens drawn where a client does not say."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


NO_DEFAULTS = SamplingDefaults()
BOUNDS = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 2**31),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
}


def sampling_defaults(config: Mapping[str, Any]) -> SamplingDefaults:
    """Of a model's `generation_config.json`. What is not a number in its bounds is passed over."""
    found: dict[str, Any] = {}
    for name, (least, most) in BOUNDS.items():
        value = config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            found[name] = int(value) if name == "top_k" else float(value)
    return SamplingDefaults(**found)


@dataclass(frozen=True)
class Text:
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    """None for a model that was not made for chats."""
    style: ReasoningStyle | None = None
    card: ModelCard = NO_CARD
    defaults: SamplingDefaults = NO_DEFAULTS

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Tells which grammars can be used."""
        return GrammarCompiler.for_checks(self.tokenizer)

    @cached_property
    def speech(self) -> ToolSpeech:
        """How the model is told of tools, and calls them."""
        return ToolSpeech(self.tokenizer, self.template)
