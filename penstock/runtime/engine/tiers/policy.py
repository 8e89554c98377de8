"""Which blocks are worth keeping, and whether reading one is faster than computing it. Pure: told sizes and seconds."""

from collections import OrderedDict

from penstock.runtime.core.batch import Batch

NEWS = 0.25
"""Weight of the latest measurement in a moving average."""
FADING = 0.999
"""Of what a step of prompts was at most, with every further one."""
TRIES = 16
"""One in so many that should be slower is read all the same: what was measured may not be so any more."""
MAX_GHOSTS = 1 << 16
LEAST_BLOCKS = 2
"""Fewer are computed at once."""


class Ghosts:
    """Names of blocks that were there once: content that comes a second time is worth keeping.

    A load that repeats nothing leaves names only, and copies nothing.
    """

    def __init__(self, most: int = MAX_GHOSTS) -> None:
        self._most = most
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, hash: bytes) -> bool:
        return hash in self._names

    def note(self, hash: bytes) -> None:
        self._names[hash] = None
        self._names.move_to_end(hash)
        if len(self._names) > self._most:
            self._names.popitem(last=False)


class Rates:
    """Bytes a second that records are read and laid down at and tokens a second that prompts are computed at, as measured."""

    def __init__(self) -> None:
        self.read_bytes_s: float | None = None
        """From a disk or a peer."""
        self.write_bytes_s: float | None = None
        """From host memory to the device."""
        self.prompt_tokens_s: float | None = None
        self._most_tokens = 0.0
        """Of a step of prompts, those long ago fading."""
        self._num_declined = 0

    def note_read(self, num_bytes: int, seconds: float) -> None:
        self.read_bytes_s = _moved(self.read_bytes_s, num_bytes / max(seconds, 1e-6))

    def note_write(self, num_bytes: int, seconds: float) -> None:
        self.write_bytes_s = _moved(self.write_bytes_s, num_bytes / max(seconds, 1e-6))

    def note_prompt(self, num_tokens: int, seconds: float) -> None:
        self.prompt_tokens_s = _moved(self.prompt_tokens_s, num_tokens / max(seconds, 1e-6))

    def note_step(self, batch: Batch, seconds: float) -> None:
        """Steps of prompts tell what computing costs; not the last piece of one, which takes nearly as long as a whole step."""
        num_prompt = sum(chunk.length for chunk in batch.chunks if len(chunk.token_ids) > chunk.num_drafts)
        if 2 * num_prompt > batch.num_tokens:
            self._most_tokens = max(batch.num_tokens, FADING * self._most_tokens)
            if 2 * batch.num_tokens >= self._most_tokens:
                self.note_prompt(batch.num_tokens, seconds)

    def compute_s(self, num_tokens: int) -> float | None:
        """None before anything is measured."""
        return None if self.prompt_tokens_s is None else num_tokens / self.prompt_tokens_s

    def is_reading_faster(self, num_tokens: int, num_bytes: int, waiting_bytes: int) -> bool:
        """Whether records behind `waiting_bytes` of others are there before their tokens would be computed.

        Before anything is measured, it is tried.
        """
        return self._is_faster(num_tokens, num_bytes + waiting_bytes, self.read_bytes_s)

    def is_writing_faster(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether records in host memory are on the device before their tokens would be computed."""
        return self._is_faster(num_tokens, num_bytes, self.write_bytes_s)

    def _is_faster(self, num_tokens: int, num_bytes: int, bytes_s: float | None) -> bool:
        compute_s = self.compute_s(num_tokens)
        if bytes_s is None or compute_s is None:
            return True
        is_faster = num_bytes / bytes_s < compute_s
        self._num_declined += not is_faster
        return is_faster or self._num_declined % TRIES == 0


def _moved(average: float | None, latest: float) -> float:
    return latest if average is None else (1 - NEWS) * average + NEWS * latest
