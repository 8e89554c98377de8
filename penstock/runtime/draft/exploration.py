"""What may be spent on guesses that do not pay, to notice when they would: one small share of the time that steps take.

While guesses pay, asking for them is part of the gain. When they do not, every asking, every wait for a guess that did not come
and every try of a drafter that computes is paid from what has been saved of that share since.
"""

SHARE = 0.02
"""Of the time of steps without drafts."""
MOST_SKIPPED = 64
"""Steps after which drafters are asked whatever that costs: else nobody would know."""
NEWS = 0.2
"""Weight of the latest asking in the moving average of its time."""


class Exploration:
    def __init__(self) -> None:
        self.pays = True
        """The last guesses were worth checking, and are being checked."""
        self._asking_s = 0.0
        """What asking takes, on average."""
        self._saved_s = 0.0
        self._num_skipped = 0

    def is_due(self, plain_s: float, *, is_free: bool) -> bool:
        """Drafters are asked before the next step, which would take so long without drafts. Where asking `is_free` only waits
        in vain keep from it."""
        self._saved_s = min(self._saved_s + SHARE * plain_s, max(plain_s, self._asking_s))
        if self.pays:
            self._saved_s = max(self._saved_s, 0.0)
        self._num_skipped += 1
        needed_s = 0.0 if self.pays or is_free else self._asking_s
        if self._saved_s >= needed_s or self._num_skipped > MOST_SKIPPED:
            self._num_skipped = 0
            return True
        return False

    def charge(self, seconds: float) -> None:
        """What the last asking took."""
        usual_s = self._asking_s or seconds
        seconds = min(seconds, 2 * usual_s)  # a machine that stood still once tells little
        self._asking_s = usual_s + NEWS * (seconds - usual_s)
        if not self.pays:
            self._saved_s = max(self._saved_s - self._asking_s, min(self._saved_s, 0.0))  # only waits lead into debt

    def lose(self, seconds: float) -> None:
        """A wait for a guess that did not come cost so much."""
        self._saved_s -= seconds

    def spend(self, seconds: float) -> bool:
        """Take so much for a try; False where less is saved."""
        if self._saved_s < seconds:
            return False
        self._saved_s -= seconds
        return True
