"""One generation in progress.

Written by the scheduler on the engine's thread; its blocks by the pool alone. Positions count from the first prompt token:

    0 ...... num_computed ...... num_launched ...... len(tokens) + num_pending
    [ KV done | being computed    | not started     ]

`num_pending` tokens have been drawn by launched steps but not reported yet, so they have a position and no known id.
"""

from functools import lru_cache

from penstock.runtime.core.batch import Chunk, Delta, Drafted, Finish, FinishReason, Logprob, PrefixHit
from penstock.runtime.core.prefix import Holding, Namespace
from penstock.runtime.core.request import Request


class SequenceProgress:
    """What every step looks at. Fields of a base class lie side by side, and a step finds the processor's caches empty."""

    __slots__ = (
        "blocks",
        "choice",
        "draft_source",
        "drafts",
        "epoch",
        "holds_next",
        "is_prefix_reported",
        "limit",
        "num_again",
        "num_computed",
        "num_launched",
        "num_verifying",
        "request_id",
        "row",
        "siblings",
        "stop_ids",
        "tokens",
    )


class Sequence(SequenceProgress):
    __slots__ = (
        "finish",
        "has_arrived",
        "holding",
        "is_waiting",
        "min_length",
        "num_prompt",
        "num_prompt_logprobs",
        "number",
        "parent",
        "prefix",
        "request",
    )

    def __init__(self, request: Request, choice: int, number: int, limit: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.choice = choice
        self.number = number
        """Order of arrival: unique per request, never reused."""
        self.num_prompt = len(request.prompt)
        self.limit = limit
        """Length at which the sequence ends."""
        self.min_length = self.num_prompt + request.params.min_tokens
        """Length up to which stop tokens do not end it."""
        self.stop_ids = _stop_ids(() if request.params.ignore_eos else tuple(request.params.stop_token_ids))
        self.tokens = list(request.prompt)
        if request.resumed:
            self.tokens.extend(request.resumed[choice])
        self.finish: Finish | None = None
        self.prefix: PrefixHit | None = None
        self.is_prefix_reported = False
        self.is_waiting = False
        self.num_prompt_logprobs = 0
        """Prompt positions already reported."""
        self.siblings: tuple[Sequence, ...] = ()
        """Other choices of the request, waiting for this one to compute the prompt they share."""
        self.parent: Sequence | None = None
        """The choice that computed the prompt, while it can still be forked."""

        # The epoch: from admission to leaving.
        self.epoch = 0
        """Number of its epoch, or of its last one if it is not running: epochs of all sequences are counted together."""
        self.row: int | None = None
        self.has_arrived = False
        """The runner has been given the sequence's `Arrival` for this row."""
        self.num_computed = 0
        self.num_launched = 0
        self.num_verifying = 0
        """Drafts in the launched step; until it is committed the sequence's length is unknown."""
        self.num_again = 0
        """Tokens before the one at `num_launched` that are in the cache and not in the state: it went back over a draft."""
        self.holds_next = False
        """The runner drew the token at `num_launched` itself and holds it in its row."""
        self.drafts: tuple[int, ...] = ()
        self.draft_source = ""
        """Which drafter guessed the drafts, including those being verified."""

        self.holding = Holding(self.tokens, Namespace(request.salt, request.adapter))
        """Its blocks, the pool's to write."""
        self.blocks = self.holding.blocks
        """The same list, without a second lookup."""

    @property
    def is_running(self) -> bool:
        return self.row is not None

    @property
    def is_behind(self) -> bool:
        """Its prompt is not all computed."""
        return self.num_computed < self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that launched steps draw and that are not reported yet, drafts aside."""
        return self.num_launched + 1 - self.num_verifying - len(self.tokens) if self.holds_next else 0

    def is_inside_since(self, epoch: int) -> bool:
        """It has not left since that epoch began."""
        return self.row is not None and self.epoch <= epoch

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The first choice reports them for all; its prompt is computed whole, since cached blocks hold no logits."""
        return self.choice == 0 and self.request.params.prompt_logprobs is not None

    def unreported_prompt_logprobs(self, chunk: Chunk, logprobs: tuple[Logprob, ...]) -> tuple[Logprob, ...]:
        """Log probabilities of a chunk not reported before: a preempted sequence computes its prompt again."""
        if not self.wants_prompt_logprobs:
            return ()
        first_token = max(chunk.start, 1)
        unreported = logprobs[max(self.num_prompt_logprobs + 1 - first_token, 0) :]
        self.num_prompt_logprobs += len(unreported)
        return unreported

    def append(self, drawn: tuple[int, ...]) -> tuple[tuple[int, ...], Finish | None]:
        """Add drawn tokens up to the one that ends the sequence; returns those added and the end if there is one."""
        tokens = self.tokens
        if not self.stop_ids:
            drawn = drawn[: self.limit - len(tokens)]
            tokens.extend(drawn)
            if len(tokens) < self.limit:
                return drawn, None
            self.num_computed = min(self.num_computed, len(tokens) - 1)
            return drawn, Finish(FinishReason.LENGTH)
        for count, token in enumerate(drawn, 1):
            tokens.append(token)
            if token in self.stop_ids and len(tokens) > self.min_length:
                finish = Finish(FinishReason.STOP, stop_token_id=token)
            elif len(tokens) >= self.limit:
                finish = Finish(FinishReason.LENGTH)
            else:
                continue
            self.num_computed = min(self.num_computed, len(tokens) - 1)
            return drawn[:count], finish
        return drawn, None

    def report(
        self,
        token_ids: tuple[int, ...],
        finish: Finish | None,
        logprobs: tuple[Logprob, ...],
        prompt_logprobs: tuple[Logprob, ...],
        drafts: tuple[Drafted, ...] = (),
    ) -> Delta:
        """What the client receives; the first time, what the prefix cache gave too."""
        prefix = None
        if not self.is_prefix_reported:
            prefix = self.prefix
            self.is_prefix_reported = True
        return Delta(self.request_id, self.choice, token_ids, finish, logprobs, prompt_logprobs, prefix, drafts)

    def enter(self, row: int, num_cached: int, epoch: int) -> None:
        self.epoch = epoch
        self.row = row
        self.num_computed = self.num_launched = num_cached

    def leave(self) -> None:
        self.row = None
        self.num_computed = self.num_launched = 0
        self.num_verifying = self.num_again = 0
        self.has_arrived = self.holds_next = False
        self.drafts = ()

    def __repr__(self) -> str:
        return f"<Sequence {self.number}.{self.choice} {len(self.tokens)} tokens, row {self.row}>"


@lru_cache(maxsize=64)
def _stop_ids(token_ids: tuple[int, ...]) -> frozenset[int]:
    """Sequences mostly stop at the same tokens: one set for all is one place in memory to look at."""
    return frozenset(token_ids)
