"""Flags that say how tokens are drawn, for every command that draws some."""

from dataclasses import dataclass, fields
from secrets import randbits
from typing import TYPE_CHECKING

from penstock.fields import setting
from penstock.runtime.core.request import SamplingParams

if TYPE_CHECKING:
    from penstock.runtime.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How tokens are drawn."""

    temperature: float = 0.7
    """How bold to be; 0 always takes the likeliest token"""
    top_k: int = 0
    """Draw among this many likeliest tokens only; 0 for all"""
    top_p: float = 0.95
    """Draw among the likeliest tokens that hold this share of the probability"""
    min_p: float = setting(0.0)
    """Leave out tokens less likely than this share of the likeliest one's probability"""
    repetition_penalty: float = setting(1.0)
    """Above 1: hold tokens back that have occurred already, in the prompt or the answer"""
    presence_penalty: float = setting(0.0)
    """Above 0: hold tokens back that the answer has already"""
    frequency_penalty: float = setting(0.0)
    """Above 0: hold tokens back the more often the answer has them"""
    seed: int | None = None
    """The same seed gives the same text (default: another one each time)"""
    max_tokens: int | None = None
    """Most tokens of an answer (default: 256 in generate; in chat, until the model ends it or the context is full)"""
    stop: tuple[str, ...] = ()
    """Text that ends the answer"""
    bad_words: tuple[str, ...] = setting(())
    """Word that is never written; several times for several"""

    def __post_init__(self) -> None:
        self.params()

    def params(self, tokenizer: "Tokenizer | None" = None) -> SamplingParams:
        """The sampling parameters these flags ask for; without a seed, each call draws its own."""
        asked = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "bad_words"}
        banned = () if tokenizer is None else tokenizer.spellings(self.bad_words)
        seed = randbits(62) if self.seed is None else self.seed
        return SamplingParams(**asked | {"seed": seed, "banned_sequences": banned})
