"""One request on its way: chosen, sent, relayed, and sent again when a replica fails.

Before the first byte has left for the client a request may go to another replica whole. After it, a stream of our own engines
goes on elsewhere: each part of it ends in a mark that lists the tokens it showed, and a replica that is handed these tokens
continues after them (`marks.py`). The client sees one answer. Callbacks only: no task is made for a request.
"""

import asyncio
from dataclasses import dataclass, field

from penstock.errors import CapacityError
from penstock.service import marks
from penstock.service.edge.refusal import Refusal, unavailable
from penstock.service.marks import TokenCount
from penstock.service.router.fleet import LiveReplica
from penstock.service.router.proxy.answer import ReplicaAnswer
from penstock.service.router.proxy.asked import usage_in
from penstock.service.router.proxy.attempt import Attempt
from penstock.service.router.proxy.host import RelayHost
from penstock.service.router.proxy.incoming import AnswerSink
from penstock.service.router.proxy.job import Job, RelayOutcome
from penstock.service.upstream.connections import Headers

RUBBISH = "its answer is none that a server of models gives"
MAX_TRIES = 3
"""Of a request that replicas answer with an error of theirs: of one that has begun, without a token between them."""
FAILED = Refusal(
    500, "the model failed on this request wherever it was sent; others are not affected", type="server_error"
)
BUSY = (429, 503)
"""The replica is fine and has no room: another may have."""
BROKEN = (500, 502, 504)


@dataclass(slots=True, eq=False)
class Relay:
    """Ends in exactly one outcome, reported to the app by `over`."""

    _app: RelayHost
    client: AnswerSink
    job: Job
    tried: list[str] = field(default_factory=list)
    num_failovers: int = 0
    """Replicas that were lost under it."""
    has_begun: bool = False
    """The client has been sent something."""
    is_over: bool = False
    count: TokenCount | None = None
    first_byte_s: float = 0.0
    _attempt: Attempt | None = None
    _hedge: Attempt | None = None
    """A second try beside the first, while neither has answered."""
    _hedging: asyncio.TimerHandle | None = None
    _answer: ReplicaAnswer | None = None
    _is_slow: bool = False
    _is_marked: bool = False
    _num_errors: int = 0
    """Answers in a row that ended in an error of the replica's, with no token between them."""
    _num_tokens: int = 0
    """Shown when the last of them came."""
    _status: int = 0
    _head: bytes = b""
    _shown: list[bytes] = field(default_factory=list)
    """Marks of what the client has been sent."""

    def __post_init__(self) -> None:
        self.client.answering = self

    @property
    def replica(self) -> LiveReplica | None:
        """Who answers it now."""
        return self._attempt.replica if self._attempt is not None else None

    # Sending

    def start(self) -> None:
        """Choose a replica and send; wait where none takes requests."""
        if not self.tried and not self.has_begun:
            self._app.overflow(self)
        attempt = self._new_attempt()
        if attempt is None:
            self._app.park(self)
            return
        self._attempt = attempt
        hedge_s = self._app.config.hedge_s
        if (
            hedge_s and not self.has_begun and self.job.is_resumable and not self.job.is_kept
        ):  # asked twice it does no harm
            self._hedging = asyncio.get_running_loop().call_later(hedge_s, self._send_hedge)
        attempt.send(self.job.data(attempt.pool, self._shown if self.has_begun else None))

    def _new_attempt(self) -> Attempt | None:
        try:
            replica = self._app.choose(self)
        except CapacityError:
            return None
        self.tried.append(replica.name)
        attempt = Attempt(self, self._app, replica, self.job.call.num_tokens)
        if self._is_slow:
            attempt.pause()
        job = self.job
        if job.trace is not None:
            why = job.choice.why if job.choice is not None else ""
            attempt.trace = job.trace.attempt(replica.name, why, len(self.tried), self._app.now())
            job.traceparent = attempt.trace.parent
        return attempt

    def _send_hedge(self) -> None:
        """The first replica is late: ask another too, and take whichever begins first."""
        first = self._attempt
        if self.is_over or first is None or first.has_answered or not self._has_other() or not self._app.may_retry():
            return
        self._hedge = self._new_attempt()
        if self._hedge is not None:
            self._app.meters.hedges.add()
            self._hedge.send(self.job.data(self._hedge.pool, None))

    def _has_other(self) -> bool:
        """Some replica that was not tried takes requests."""
        app, now = self._app, self._app.now()
        others = [one for one in app.fleet.serving(self.job.model) if one.name not in self.tried]
        return not self.job.holder and any(app.fleet.takes(one, now) for one in others)

    # What attempts say

    def on_head(self, attempt: Attempt, status: int, headers: Headers) -> None:
        answer = ReplicaAnswer(status, headers, self.job.strips_usage, self._app.is_metered)
        is_error = status in BUSY or status in BROKEN
        if self.has_begun:  # only an engine of ours goes on where another was
            is_error = status != 200 or not answer.is_marked
        if is_error and self._outlived(attempt, None if status in BUSY else False):
            return
        self._prefer(attempt)
        if answer.needs is not None and not self.has_begun and self._app.asks_more(self, answer.needs):
            self._leave(is_good=None)
            return
        if not self.first_byte_s:
            self.first_byte_s = self._app.now()
        self._status = status
        if answer.is_lost and not self.has_begun:
            self._fail(attempt, "its engine went away", False)
            return
        if not self.has_begun and not answer.is_of_kind(self.job.request.method):
            self._fail(attempt, RUBBISH, False)
            return
        if is_error and self.has_begun and status not in BUSY:
            self._fail_with_error(attempt, "it does not go on with an answer")
            return
        if is_error:
            if self._try_elsewhere(status):
                return
            if self._ask_another_model(is_good=None if status in BUSY else False):
                return
        elif status == 404 and self.job.is_searched and not self.has_begun and self._has_other():
            self._leave(None)  # it is not kept there: the next replica may keep it
            self.start()
            return
        self._answer = answer
        self._is_marked = answer.is_marked
        self.count = answer.count or self.count
        if not self.has_begun:
            self._head = answer.lines + self._app.answer_headers(self) + self._timing(attempt)

    def _timing(self, attempt: Attempt) -> bytes:
        """Beside what the replica says of its time: what the way to it and the router took."""
        if attempt.network_s is None:
            return b""
        arrival_s = self.job.request.arrival_s
        here_s = max(attempt.sent_s - arrival_s, 0.0)
        return b"server-timing: router;dur=%.3f, network;dur=%.3f\r\n" % (here_s * 1000, attempt.network_s * 1000)

    def on_part(self, data: bytes) -> None:
        answer = self._answer
        if self.is_over or answer is None:
            return
        shown = answer.part(data)
        if answer.marks:
            self._shown.extend(answer.marks)
        if shown:
            if self.job.is_kept:
                self._app.learn_ids(self, shown)
            if not self.has_begun:
                if not answer.begins_well(shown) and self._attempt is not None:
                    self._fail(self._attempt, RUBBISH, False)
                    return
                self.has_begun = True
                self.client.begin(self._status, self._head)
            self.client.write(shown)

    def on_end(self, attempt: Attempt) -> None:
        answer = self._answer
        if self.is_over or answer is None:
            return
        self.count = answer.count or self.count
        if answer.is_held:
            self._end_whole(attempt, answer)
            return
        if not self.has_begun:
            self._fail(attempt, "the stream ended before it began", False)
            return
        if answer.is_marked:
            end = marks.end_of(self._shown)
            if end is None:
                self._fail_with_error(attempt, "the stream ended early")
                return
            self.count = end
        self._finish(RelayOutcome.ANSWERED)
        rest = answer.rest()
        if rest:
            self.client.write(rest)
        self.client.end()

    def _end_whole(self, attempt: Attempt, answer: ReplicaAnswer) -> None:
        whole, request = answer.whole(), self.job.request
        if not answer.is_whole(request.method, request.path, whole):
            self._fail(attempt, RUBBISH, False)
            return
        if self.count is None and self._status == 200 and self._app.is_metered:
            self.count = usage_in(whole)
        if self.job.is_kept and self._status == 200:
            self._app.learn_ids(self, whole)
        body = self._app.judge(self, self._status, self._head, whole)
        if body is None:  # not good enough: a larger model is asked
            self._ask_again()
            return
        self._finish(RelayOutcome.ANSWERED)
        self.client.respond(self._status, self._head, body)

    def on_failed(self, attempt: Attempt, message: str, is_gone: bool) -> None:
        if self.is_over:
            return
        if self._outlived(attempt, False):
            self._app.note_failure(attempt.replica, message, is_gone=is_gone)
        else:
            self._fail(attempt, message, is_gone)

    def lose_replica(self, replica: LiveReplica, message: str) -> None:
        """The replica is known to be gone, though no connection has noticed."""
        for attempt in (self._hedge, self._attempt):
            if attempt is not None and attempt.replica is replica:
                self.on_failed(attempt, message, False)

    # When there are two attempts

    def _outlived(self, attempt: Attempt, is_good: bool | None) -> bool:
        """One of two attempts came to nothing: the other goes on alone. False if it was the only one."""
        if self._hedge is None:
            return False
        other = self._attempt if attempt is self._hedge else self._hedge
        attempt.leave(is_good)
        self._attempt, self._hedge = other, None
        return True

    def _prefer(self, attempt: Attempt) -> None:
        """This one has begun to answer: the other, if there is one, is stopped."""
        self._stop_hedging()
        if self._hedge is not None:
            other = self._attempt if attempt is self._hedge else self._hedge
            self._attempt, self._hedge = attempt, None
            if other is not None:
                other.leave(None)

    def _stop_hedging(self) -> None:
        if self._hedging is not None:
            self._hedging.cancel()
            self._hedging = None

    # When a replica fails

    def _fail(self, attempt: Attempt, message: str, is_gone: bool) -> None:
        """The replica was lost. A client that has seen nothing has its request sent again, however often that happens to
        others too: beyond the budget of retries it waits a moment first.
        """
        self._leave(is_good=False)
        if not attempt.is_own_fault:
            self._app.note_failure(attempt.replica, message, is_gone=is_gone)
        self._answer = None
        if self.has_begun and not (self._is_marked and self.job.is_resumable):
            self._give_up("the replica that was answering is gone; send the request again")
            return
        self.num_failovers += 1
        if self.num_failovers > self._app.config.max_failovers:
            self._give_up("the replicas that were asked are gone; send the request again")
            return
        if self.has_begun:
            self._app.meters.failovers.add()
            self.tried = self.tried[-1:]
        elif not self._app.may_retry():
            self._app.park(self)
            return
        self.start()

    def _fail_with_error(self, attempt: Attempt, message: str) -> None:
        """The replica is there, and it could not go on. Where several cannot, and none of them a token further, the request
        is what fails."""
        num_tokens = self._num_shown_tokens
        self._num_errors = self._num_errors + 1 if num_tokens == self._num_tokens else 1
        self._num_tokens = num_tokens
        if self._num_errors < MAX_TRIES:
            self._fail(attempt, message, False)
        else:
            self._leave(is_good=False)
            self.refuse(FAILED, RelayOutcome.FAILED)

    def _try_elsewhere(self, status: int) -> bool:
        """Another replica may do better. False where the answer has to be passed on as it is."""
        app = self._app
        if not self.has_begun and (not self._has_other() or len(self.tried) >= MAX_TRIES or not app.may_retry()):
            return False
        self._leave(is_good=None if status in BUSY else False)
        if self.has_begun:
            app.park(self)  # somebody is waiting in mid-sentence: until a replica has room again
        else:
            self.start()
        return True

    def _ask_another_model(self, is_good: bool | None) -> bool:
        """The model cannot answer: the next of the request's models may."""
        if self.has_begun or not self.fall_back():
            return False
        self._leave(is_good)
        self._ask_again()
        return True

    def fall_back(self) -> bool:
        """Turn to the next model of the request; False if there is none."""
        job = self.job
        job.is_trial = False
        while job.next_models:
            job.model, *rest = job.next_models
            job.next_models = tuple(rest)
            if self._app.fleet.is_known(job.model):
                self._app.meters.fallbacks.add()
                return True
        return False

    def _ask_again(self) -> None:
        """Another model, whole."""
        self._leave(is_good=True)
        self.tried.clear()
        self.count = None
        self.start()

    def _give_up(self, message: str) -> None:
        error = unavailable(message, 1, code="replica_failed")
        self.refuse(error, RelayOutcome.FAILED)

    def refuse(self, error: Refusal, outcome: RelayOutcome) -> None:
        """End it with an answer of ours."""
        if self.is_over or self._ask_another_model(is_good=None):
            return
        self._leave(is_good=None)
        has_begun = self.has_begun
        self._finish(outcome)
        if has_begun:
            self.client.write(error.event(self.job.request.path, self.job.request.request_id))
            self.client.end()
        else:
            status, body = error.worded(self.job.request.path, self.job.request.request_id)
            self.client.respond(status, error.header_lines + self._app.answer_headers(self), body)

    # What the client's connection calls

    def on_client_gone(self) -> None:
        if not self.is_over:
            self._leave(is_good=None)
            self._finish(RelayOutcome.LEFT)

    def on_client_slow(self) -> None:
        self._is_slow = True
        for attempt in filter(None, (self._attempt, self._hedge)):
            attempt.pause()

    def on_client_ready(self) -> None:
        self._is_slow = False
        for attempt in filter(None, (self._attempt, self._hedge)):
            attempt.resume()

    # The books

    def _leave(self, is_good: bool | None) -> None:
        """No replica is asked any more."""
        self._stop_hedging()
        attempt, self._attempt = self._attempt, None
        hedge, self._hedge = self._hedge, None
        if attempt is not None:
            attempt.leave(is_good)
        if hedge is not None:
            hedge.leave(None)

    def finish_from_memory(self, status: int) -> None:
        """It was answered before: no replica is asked."""
        self._status = status
        self._finish(RelayOutcome.ANSWERED)

    def _finish(self, outcome: RelayOutcome) -> None:
        self.is_over = True
        is_good = None if 400 <= self._status < 500 else self._status < 500
        self._leave(is_good if outcome is RelayOutcome.ANSWERED else None)
        self._app.over(self, outcome, self._status)

    @property
    def can_move(self) -> bool:
        """Another replica could go on with it."""
        return not self.job.holder and (not self.has_begun or (self._is_marked and self.job.is_resumable))

    @property
    def estimate(self) -> TokenCount:
        """What it took where nobody said: all of the prompt once it was answered, and the tokens shown."""
        if not self.first_byte_s or self._status >= 400:
            return TokenCount()
        return TokenCount(self.job.call.num_tokens, self._num_shown_tokens, 0)

    @property
    def _num_shown_tokens(self) -> int:
        return marks.num_tokens(self._shown)
