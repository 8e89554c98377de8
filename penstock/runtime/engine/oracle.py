"""A model made of arithmetic, for proving everything around a model right.

Each KV position holds a digest of its token, its place and the digest before it; the next token is a function of all
digests *read back through the block table*. So any wrong block, stale content, lost copy, mixed-up row or doubled token
changes the answer, and the right answer is a pure function of prompt, seed and choice: `expected_tokens`.
"""

from dataclasses import dataclass, field

from penstock.runtime.core.batch import Batch, Chunk, StepOutput
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Masks
from penstock.runtime.engine.scripted import Done

_MASK = 2**64 - 1
EMPTY = 0x5EED


def mix(*numbers: int) -> int:
    """64 well-mixed bits of some whole numbers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 29
    return state


def digest(token_id: int, position: int, before: int) -> int:
    return mix(token_id, position, before)


def draw(digests: list[int], params: SamplingParams, choice: int, vocab_size: int) -> int:
    seed = () if params.is_greedy else (params.seed, choice)
    return mix(len(digests), *digests, *seed) % vocab_size


def expected_tokens(
    prompt: tuple[int, ...], params: SamplingParams, choice: int, num_tokens: int, vocab_size: int
) -> list[int]:
    """The answer, computed with neither cache nor scheduler."""
    digests: list[int] = []
    tokens = list(prompt)
    while True:
        for position in range(len(digests), len(tokens)):
            digests.append(digest(tokens[position], position, digests[-1] if digests else EMPTY))
        if len(tokens) == len(prompt) + num_tokens:
            return tokens[len(prompt) :]
        tokens.append(draw(digests, params, choice, vocab_size))


@dataclass(slots=True)
class OracleRow:
    """What a runner remembers of the sequence in a row."""

    params: SamplingParams
    choice: int
    blocks: list[int]
    tokens: dict[int, int] = field(default_factory=dict)


class OracleRunner:
    """`num_drafts` guesses are offered after each token; about one in three is wrong."""

    def __init__(self, num_blocks: int, block_size: int, *, vocab_size: int = 256, num_drafts: int = 0) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._num_drafts = num_drafts
        self._digests = [[EMPTY] * block_size for _ in range(num_blocks)]
        self._rows: dict[int, OracleRow] = {}
        self._allowed: dict[int, list[list[int]]] = {}
        """Tokens that may be drawn in a row, for one draw after the other; all where there is no entry."""

    def launch(self, batch: Batch, masks: Masks | None = None) -> Done:
        self._allowed = {} if masks is None else self._unpacked(masks, batch)
        for source, target in batch.copies:
            self._digests[target][:] = self._digests[source]
        tokens, drafts = [], []
        for chunk in batch.chunks:
            row = self._place(chunk)
            drawn = self._run(row, chunk)
            tokens.append(drawn)
            last = chunk.end - chunk.num_drafts + len(drawn) - 1
            drafts.append(self._guess(row, last) if drawn and self._num_drafts else ())
        return Done(StepOutput(tuple(tokens), tuple(drafts) if self._num_drafts else ()))

    def _place(self, chunk: Chunk) -> OracleRow:
        if chunk.arrival is not None:
            self._rows[chunk.row] = OracleRow(chunk.arrival.params, chunk.arrival.choice, [])
        row = self._rows[chunk.row]
        if chunk.new_blocks and chunk.arrival is None:
            # The table then ends with the chunk; written by place, so that a step launched again changes nothing.
            del row.blocks[-(-chunk.end // self._block_size) - len(chunk.new_blocks) :]
        row.blocks.extend(chunk.new_blocks)
        new_from = chunk.end - len(chunk.token_ids)
        row.tokens.update(enumerate(chunk.token_ids, new_from))
        return row

    def _run(self, row: OracleRow, chunk: Chunk) -> tuple[int, ...]:
        """Write the digests of the chunk's positions; draw, and continue drawing while the drafts are right."""
        first_draft = chunk.end - chunk.num_drafts
        for position in range(chunk.start, first_draft):
            self._write(row, position)
        if not chunk.samples:
            return ()
        allowed = self._allowed.get(chunk.row, [])
        drawn = [self._draw(row, first_draft, allowed)]
        for position in range(first_draft, chunk.end):
            guess = row.tokens[position]
            self._write(row, position)
            if guess != drawn[-1]:
                break
            drawn.append(self._draw(row, position + 1, allowed))
        row.tokens[first_draft + len(drawn) - 1] = drawn[-1]
        return tuple(drawn)

    def _write(self, row: OracleRow, position: int) -> None:
        before = self._read(row, position - 1) if position else EMPTY
        block, offset = divmod(position, self._block_size)
        self._digests[row.blocks[block]][offset] = digest(row.tokens[position], position, before)

    def _read(self, row: OracleRow, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return self._digests[row.blocks[block]][offset]

    def _draw(self, row: OracleRow, num_positions: int, allowed: list[list[int]]) -> int:
        digests = [self._read(row, position) for position in range(num_positions)]
        drawn = draw(digests, row.params, row.choice, self._vocab_size)
        tokens = allowed.pop(0) if allowed else []
        return tokens[drawn % len(tokens)] if tokens else drawn

    def _unpacked(self, masks: Masks, batch: Batch) -> dict[int, list[list[int]]]:
        width = -(-self._vocab_size // 32) * 4
        bits = bytearray(width * masks.num_rows)
        masks.fill(memoryview(bits))
        rows = iter(range(0, len(bits), width))
        return {
            chunk.row: [self._tokens(bits, next(rows)) for _ in range(1 + chunk.num_drafts)]
            for chunk in (batch.chunks[index] for index in masks.chunks)
        }

    def _tokens(self, bits: bytearray, begin: int) -> list[int]:
        return [token for token in range(self._vocab_size) if bits[begin + token // 8] >> token % 8 & 1]

    def _guess(self, row: OracleRow, position: int) -> tuple[int, ...]:
        """The next tokens, some of them made wrong."""
        digests = [self._read(row, earlier) for earlier in range(position)]
        guesses: list[int] = []
        token = row.tokens[position]
        for ahead in range(position, position + self._num_drafts):
            digests.append(digest(token, ahead, digests[-1] if digests else EMPTY))
            token = draw(digests, row.params, row.choice, self._vocab_size)
            guesses.append(token if mix(ahead, token) % 3 else (token + 1) % self._vocab_size)
        return tuple(guesses)
