"""When waiting sequences may join (continuous batching, and the two baselines it replaced), and how long steps are that mix.

All three run the same steps over the same paged cache. The baselines behave as the systems of their time did: a batch is
formed whole, reserves its full length at once (it cannot preempt), computes all prompts before it generates, and admits no
sequence until its last one ends. They are spared what better systems of that time had already avoided: padding, and holding
back finished answers.

The tokens of a step share one reading of the weights: prompts beside answers cost less than alone, up to the length at which
arithmetic takes as long as that reading. Beyond it they cost as much as alone, and the answers wait for them. Where that length
is, the steps themselves tell (`MixedSteps`).
"""

from typing import NamedTuple

WAVE = 128
"""Tokens of a tile in which a GPU computes large products: a few tokens more cost as much as a whole tile."""
STRETCH = 2.0
"""Times as long as a step of answers alone."""
MAX_STEPS_WAITING = 8
"""Steps in which all prompts that wait are computed: where many wait, rows are filled first."""
LONG_PROMPT = 1024
"""Tokens from which a prompt whose turn it is has a step for itself, or as few as there can be: each of more pieces reads again
what those before it left, and a piece of the next one in its step would only keep its first token back."""
MIN_PROMPT_TOKENS = 512
"""Tokens of prompts in a step that tells what a token of one costs."""


class Batching(NamedTuple):
    joins: bool
    """Sequences may join a batch that is running."""
    gather_s: float = 0.0
    """How long an idle engine waits for a batch to fill."""

    def opens_s(self, since: float, *, is_full: bool) -> float:
        """When an idle engine may start a batch for the waiting sequences, given since when the first of them waits."""
        return since if is_full else since + self.gather_s


CONTINUOUS = Batching(joins=True)
STATIC = Batching(joins=False)
"""All sequences that wait when the engine becomes idle make the next batch."""


def dynamic(gather_s: float) -> Batching:
    """Like static, but a batch that is not full waits a moment for others."""
    return Batching(joins=False, gather_s=gather_s)


class MixedSteps:
    """Steps of answers and prompts take about twice as long as steps of answers alone, and longer while much waits."""

    def __init__(self) -> None:
        self._answer_step_s: dict[int, float] = {}
        """Seconds of a step of answers alone, by the power of two below their number."""
        self._token_s = 0.0
        """Seconds of a token of a prompt, in a long step; 0 while none was seen."""

    def note(self, num_answers: int, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long; all but the answers' are of prompts."""
        if num_answers == num_tokens:
            size = num_answers.bit_length()
            self._answer_step_s[size] = _follow(self._answer_step_s.get(size, 0.0), seconds)
        elif num_tokens - num_answers >= MIN_PROMPT_TOKENS:
            self._token_s = _follow(self._token_s, seconds / num_tokens)

    def size(self, num_answers: int, num_prompt_tokens: int, most: int, num_first: int = 0) -> int:
        """Tokens of the next step, given how many answers go on, how much of prompts waits, and how much of the first."""
        if num_first > LONG_PROMPT:
            return min(num_answers + -(-num_first // WAVE) * WAVE, most)
        if not (num_answers and self._answer_step_s and self._token_s):
            return most
        size = num_answers.bit_length()
        nearest = min(self._answer_step_s, key=lambda known: (abs(known - size), known))
        tokens = STRETCH * self._answer_step_s[nearest] / self._token_s
        longer = num_answers + num_prompt_tokens / MAX_STEPS_WAITING
        waves = round(max(tokens, longer) / WAVE)
        return min(max(waves * WAVE, num_answers + WAVE), most)


def _follow(known: float, seen: float) -> float:
    """What is known moves an eighth of the way; a step that was held up says no more than double."""
    return known + (min(seen, 2 * known) - known) / 8 if known else seen
