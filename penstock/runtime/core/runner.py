"""What computes batches, as the engine, drafters and ranks see it. Knows a `Batch` and nothing of devices."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from penstock.runtime.core.batch import Batch, StepOutput


class RunnerShape(NamedTuple):
    """How much a runner holds."""

    num_blocks: int
    block_size: int
    max_sequences: int
    max_context: int
    frees: bool = False
    """Batches name the blocks of every group of caches, and windows give theirs back; else there is one block table a row."""
    num_states: int = 0


class Masks(Protocol):
    """Which tokens may be drawn in a launch, where grammars restrict them."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks of the batch that draw under a mask, in ascending order."""

    @property
    def num_rows(self) -> int:
        """Rows of bits: one for each of those chunks, and one more for each of its drafts."""

    def fill(self, bits: memoryview) -> None:
        """Write all rows, chunk after chunk and position after position: 32-bit words, bit t % 32 of word t // 32 set if
        token t may be drawn. To be called once, as late as can be: the tokens before must have been reported by then."""


class Ticket(Protocol):
    """A launched batch."""

    def draw(self) -> None:
        """Draw the rows that wait for masks. To be called before the next launch; asking for the result does it too."""

    def result(self) -> StepOutput:
        """Wait for the step and return what it gave."""


class Runner(Protocol):
    """Computes batches in the order they are launched.

    A chunk may read blocks that an earlier chunk of the same batch fills, if that one is of more than one token: in each layer
    all keys and values are laid down before any such chunk attends. Steps of single tokens may do both in one launch.

    A batch that raises, at launch or at its result, must leave every row as it was before, so that it, or any part of it,
    can be launched again: `fresh` arrivals come again, KV writes repeat with the same values.
    """

    def launch(self, batch: Batch, masks: Masks | None = None) -> Ticket:
        """Start a step. It may read tokens that the step before it has drawn but not yet reported; with masks, it draws none
        before `draw` is called, or in the launch itself if the runner has one step under way at a time."""


@runtime_checkable
class BlockRunner(Runner, Protocol):
    """Hands out what blocks hold as bytes and takes it back, in the order of its steps.

    Bytes are in one order whatever runs: layer by layer its keys, its values and their scales, if any, each [position, kv head,
    number]. What is read is what all steps launched so far leave there; steps launched later read what was written."""

    @property
    def block_bytes(self) -> int:
        """Of one block, all layers."""

    @property
    def kv_format(self) -> str:
        """Number type of cached keys and values."""

    def read_blocks(self, blocks: Sequence[int]) -> list[bytes]: ...

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> None: ...


class BlockCopy(Protocol):
    """Blocks on their way between a device and host memory."""

    seconds: float | None
    """What the transfer took by itself, waits for steps left out, once it is over; None where nobody knows."""

    def wait(self) -> Sequence[bytes | memoryview]:
        """From any thread: what was read, or nothing after a write, once it is over."""


@runtime_checkable
class CopyingRunner(BlockRunner, Protocol):
    """Copies blocks beside its steps. What it copies from and to belongs to the copy until that is over: `leaving` and
    `arriving` blocks of the pool."""

    def pin(self, num_bytes: int) -> None:
        """Have host memory ready for so much of blocks."""

    def begin_read(self, blocks: Sequence[int], *, is_fenced: bool) -> BlockCopy:
        """Fenced, steps launched later may write over the blocks: they wait for as much of the copy as they must."""

    def begin_write(self, blocks: Sequence[int], contents: Sequence[bytes | memoryview]) -> BlockCopy:
        """Steps launched after it is over read what was written; none before may."""


@runtime_checkable
class RehearsingRunner(Runner, Protocol):
    """Makes later steps faster while there is nothing to compute."""

    def rehearse(self) -> bool:
        """A part of that, some milliseconds; False if none is left."""


@runtime_checkable
class InterruptibleRunner(Runner, Protocol):
    """Can give up a step halfway, with StepInterruptedError and every row as it was before."""

    yields: bool
    """Steps launched from now on may be interrupted."""

    def interrupt(self, *, is_on: bool) -> None:
        """From any thread: steps that may be are interrupted, from now on and until told otherwise."""
