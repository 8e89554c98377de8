"""A model made of arithmetic, for proving everything around a model right.

Each KV position holds a digest of its token, its place and the digest before it; the next token is a function of all
digests *read back through the block table*. So any wrong block, stale content, lost copy, mixed-up row or doubled token
changes the answer, and the right answer is a pure function of prompt, seed and choice.

Further kinds of cache are arithmetic too: a window's positions hold digests that only the window reads, and a state is a digest
of all tokens so far, read from one slot and written to another.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.runtime.core.batch import Batch, Chunk, StepOutput
from penstock.runtime.core.kinds.groups import PLAIN, BlockGroup, CacheGroups
from penstock.runtime.core.kinds.states import NO_STATE
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Masks

_MASK = 2**64 - 1
EMPTY = 0x5EED
DIGEST_BYTES = 16


def mix(*numbers: int) -> int:
    """64 well-mixed bits of some whole numbers."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 29
    return state


digest = windowed = next_state = mix
"""Of a token, its position and the digest before it; what a position of a further group holds, of its token, itself and the
group; and a state, of the one before, a token and its position."""


def draw(digests: list[int], params: SamplingParams, choice: int, vocab_size: int) -> int:
    seed = () if params.is_greedy else (params.seed, choice)
    return mix(len(digests), *digests, *seed) % vocab_size


def in_sight(group: BlockGroup, num_positions: int) -> range:
    """Positions that the last of so many reads."""
    return range(0 if group.window is None else max(num_positions - group.window, 0), num_positions)


@dataclass(slots=True)
class OracleRow:
    """What a runner remembers of the sequence in a row."""

    params: SamplingParams
    choice: int
    tables: list[list[int]]
    """Block ids, by group."""
    tokens: dict[int, int] = field(default_factory=dict)
    slots: tuple[int, int] = (NO_STATE, NO_STATE)
    """Of the state: read, and written, by the chunk."""
    state: int = EMPTY
    """After the last token that is no wrong draft: what guesses begin from."""


class OracleRunner:
    """`num_drafts` guesses are offered after each token; about one in three is wrong."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        vocab_size: int = 256,
        num_drafts: int = 0,
        groups: CacheGroups = PLAIN,
    ) -> None:
        self._groups = (groups.first, *groups.others)
        self._states = [EMPTY] * groups.num_states
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._num_drafts = num_drafts
        self._digests = [[EMPTY] * block_size for _ in range(num_blocks)]
        self._rows: dict[int, OracleRow] = {}
        self._allowed: dict[int, list[list[int]]] = {}
        """Tokens that may be drawn in a row, for one draw after the other; all where there is no entry."""

    block_bytes = property(lambda self: DIGEST_BYTES * self._block_size)
    kv_format = "digests"

    def read_blocks(self, blocks: Iterable[int]) -> list[bytes]:
        return [b"".join(held.to_bytes(DIGEST_BYTES, "little") for held in self._digests[block]) for block in blocks]

    def write_blocks(self, blocks: Iterable[int], contents: Iterable[bytes | memoryview]) -> None:
        for block, content in zip(blocks, contents):
            places = range(0, len(content), DIGEST_BYTES)
            self._digests[block][:] = [int.from_bytes(content[at : at + DIGEST_BYTES], "little") for at in places]

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
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
        return StepOutput(tuple(tokens), tuple(drafts) if self._num_drafts else ())

    def _place(self, chunk: Chunk) -> OracleRow:
        if chunk.arrival is not None:
            self._rows[chunk.row] = OracleRow(chunk.arrival.params, chunk.arrival.choice, [[] for _ in self._groups])
        row = self._rows[chunk.row]
        for table, group, new in zip(row.tables, self._groups, (chunk.new_blocks, *chunk.others)):
            if new and chunk.arrival is None:
                # The table then ends with the chunk; written by place, so that a step launched again changes nothing.
                del table[-(-chunk.end // self._block_size) * group.width - len(new) :]
            table.extend(new)
        if self._states:
            row.slots = (chunk.state[0], chunk.state[1]) if chunk.state else (row.slots[1], row.slots[1])
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
            guess, row.state = row.tokens[position], self._state(row)
            self._write(row, position)
            if guess != drawn[-1]:
                break
            drawn.append(self._draw(row, position + 1, allowed))
        else:
            row.state = self._state(row)
        row.tokens[first_draft + len(drawn) - 1] = drawn[-1]
        return tuple(drawn)

    def _write(self, row: OracleRow, position: int) -> None:
        before = self._read(row, position - 1) if position else EMPTY
        token = row.tokens[position]
        for number in range(len(self._groups)):
            held = windowed(token, position, number) if number else digest(token, position, before)
            for place, block in enumerate(self._ids(row, number, position)):
                self._digests[block][position % self._block_size] = held + place
        if self._states:
            read, written = row.slots
            state = EMPTY if read == NO_STATE else self._states[read]
            self._states[written] = next_state(state, token, position)
            row.slots = written, written

    def _state(self, row: OracleRow) -> int:
        return self._states[row.slots[1]] if self._states else EMPTY

    def _read(self, row: OracleRow, position: int, number: int = 0) -> int:
        """What a group holds of a position, if all its parts agree."""
        ids = self._ids(row, number, position)
        parts = {self._digests[block][position % self._block_size] - place for place, block in enumerate(ids)}
        return parts.pop() if len(parts) == 1 else EMPTY

    def _ids(self, row: OracleRow, number: int, position: int) -> list[int]:
        width, block = self._groups[number].width, position // self._block_size
        return row.tables[number][block * width : (block + 1) * width]

    def _seen(self, row: OracleRow, num_positions: int) -> list[int]:
        """All that the last of so many positions reads, through the tables."""
        seen = [
            self._read(row, position, number)
            for number, group in enumerate(self._groups)
            for position in in_sight(group, num_positions)
        ]
        return [*seen, self._state(row)] if self._states else seen

    def _draw(self, row: OracleRow, num_positions: int, allowed: list[list[int]]) -> int:
        drawn = draw(self._seen(row, num_positions), row.params, row.choice, self._vocab_size)
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
        ahead_of: dict[tuple[int, int], int] = {}

        def read(number: int, place: int) -> int:
            return ahead_of.get((number, place)) or self._read(row, place, number)

        guesses: list[int] = []
        token, state = row.tokens[position], row.state
        for ahead in range(position, position + self._num_drafts):
            ahead_of[0, ahead] = digest(token, ahead, read(0, ahead - 1) if ahead else EMPTY)
            for number in range(1, len(self._groups)):
                ahead_of[number, ahead] = windowed(token, ahead, number)
            numbered = list(enumerate(self._groups))
            seen = [read(number, place) for number, group in numbered for place in in_sight(group, ahead + 1)]
            state = next_state(state, token, ahead)
            seen += [state] * bool(self._states)
            token = draw(seen, row.params, row.choice, self._vocab_size)
            guesses.append(token if mix(ahead, token) % 3 else (token + 1) % self._vocab_size)
        return tuple(guesses)
