"""Prompts of an asked number of tokens, for a model whose tokenizer we do not have.

Words are drawn from a short list whose cost in tokens has been measured. A prompt is made of named segments; the same name
under the same nonce gives the same words, so that shared prefixes and the blocks of a trace repeat exactly, and nothing
else does: a new nonce is a new set of words, which no cache of an earlier run has seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from penstock.errors import ConfigError

_LIST = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work number night point home water room mother area money story fact
month lot right study book eye job word business issue side kind head house service friend father power hour game line
end member law car city name team minute idea body back parent face level office door health person art war history
party result change morning reason research girl guy moment air teacher force education foot boy age policy music
market sense nation plan college interest death course someone experience voice light table field river road paper
stone green blue small large open long short old new high low early late full free clear strong simple
"""
WORDS = tuple(_LIST.split())
FILLERS = (".", ",", "!")
"""Pieces without a space before them, for the last token or two."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens. Equal names mean equal words."""

    name: str
    num_tokens: int


@dataclass(frozen=True)
class PromptWords:
    """What can be written, and what it costs."""

    pieces: tuple[str, ...]
    costs: tuple[float, ...]
    """Tokens of each piece after another one."""
    overhead: int = 0
    """Tokens that the server adds to every prompt: a template, a first token."""
    token_ids: tuple[int, ...] = ()
    """Plain tokens, where prompts may be given as numbers; else none."""
    nonce: str = ""

    def __post_init__(self) -> None:
        if not self.pieces or not all(cost > 0.0 for cost in self.costs):
            raise ConfigError(
                "no word of the list could be measured; this server counts tokens in a way we cannot follow"
            )

    @cached_property
    def cheapest(self) -> list[tuple[float, str]]:
        return sorted(zip(self.costs, self.pieces, strict=True))[:8]

    def text(self, segments: Sequence[Segment]) -> str:
        """Words of as many tokens as asked, less those the server adds by itself, but at least one word."""
        return "".join(_words(self, name, count) for name, count in self._shares(segments)) or self.pieces[0]

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """The same as numbers of tokens."""
        ids: list[int] = []
        for name, count in self._shares(segments):
            ids.extend(Random(f"{self.nonce} {name}").choices(self.token_ids, k=count))
        return ids or [self.token_ids[0]]

    def _shares(self, segments: Sequence[Segment]) -> Iterator[tuple[str, int]]:
        """What the server adds is taken from the last segment, which is a prompt's own: shared ones stay equal."""
        left = self.overhead
        shares: list[tuple[str, int]] = []
        for segment in reversed(segments):
            taken = min(left, segment.num_tokens)
            left -= taken
            shares.append((segment.name, segment.num_tokens - taken))
        return reversed(shares)


@lru_cache(maxsize=2048)
def _words(vocabulary: PromptWords, name: str, num_tokens: int) -> str:
    random = Random(f"{vocabulary.nonce} {name}")
    costs = dict(zip(vocabulary.pieces, vocabulary.costs, strict=True))
    words = [piece for piece in vocabulary.pieces if piece.startswith(" ")] or list(vocabulary.pieces)
    least, most = min(costs[word] for word in words), max(costs[word] for word in words)
    left = float(num_tokens)
    drawn: list[str] = []
    while left >= 3 * most:
        some = random.choices(words, k=int(left / most) - 1)
        drawn.extend(some)
        left -= sum(costs[word] for word in some)
    while fitting := [word for word in words if costs[word] <= left]:
        # Words are chosen so that others fill what they leave: to the token, if the list allows it.
        exact = [word for word in fitting if costs[word] == left or costs[word] <= left - least]
        drawn.append(random.choice(exact or fitting))
        left -= costs[drawn[-1]]
    for cost, piece in vocabulary.cheapest:
        if cost <= left:
            drawn.append(piece)
            break
    return "".join(drawn)
