"""What operators do to sessions: list, pin, drop, give out as a file and take in again."""

from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.prefix import packed
from penstock.runtime.core.runner import BlockRunner
from penstock.runtime.engine.tiers.news import OrderDone
from penstock.runtime.engine.tiers.record import KVRecord
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder, KeptSession, SessionBook
from penstock.runtime.engine.tiers.store import TierStore


class CacheOrders:
    """Belongs to the engine's thread; `reader` reads and writes files."""

    def __init__(self, sessions: SessionBook, pool: BlockPool, runner: BlockRunner, store: TierStore) -> None:
        self._sessions = sessions
        self._pool = pool
        self._runner = runner
        self._store = store
        self.put: Callable[[OrderDone], object] = self.take
        """Brings news of files to the engine's thread."""
        self._answers: list[CacheAnswer] = []

    def do(self, order: CacheOrder, now: float) -> None:
        """`answers` tells what came of it, some time later where a file is read or written."""
        answer = CacheAnswer(order.order_id)
        try:
            sessions = self._sessions
            if order.action == "export":
                self._export(order)
                return
            if order.action == "import":
                self._store.reader.submit(self._import, order, now)
                return
            if order.action == "pin":
                sessions.pin(order.name, now + order.seconds)
            elif order.action == "drop":
                self._store.drop(sessions.drop(order.name))
            answer = answer._replace(sessions=sessions.facts(self._store.places, now))
        except PenstockError as error:
            answer = answer._replace(error=str(error))
        self._answers.append(answer)

    def take(self, done: OrderDone) -> None:
        if done.session is not None:
            self._sessions.keep(done.session)
        self._answers.append(done.answer)

    def answers(self) -> tuple[CacheAnswer, ...]:
        """Since the last call."""
        answers, self._answers = tuple(self._answers), []
        return answers

    def _export(self, order: CacheOrder) -> None:
        session = self._sessions.find(order.name)
        self._sessions.path(session.name)
        match = self._pool.match(session.holding)
        contents = self._runner.read_blocks(match.blocks) if match.blocks else []
        size = self._pool.block_size
        mine = [
            KVRecord(hash, packed(session.tokens[place * size : (place + 1) * size]), kv)
            for place, (hash, kv) in enumerate(zip(session.hashes, contents))
        ]
        held = [self._store.held(hash) for hash in session.hashes[len(mine) :]]
        self._store.reader.submit(self._write_file, order.order_id, session, [*mine, *held])

    def _write_file(self, order_id: int, session: KeptSession, held: list[KVRecord | None]) -> None:
        """On the reader's thread."""
        answer = CacheAnswer(order_id)
        try:
            found = (record or self._store.read(hash) for hash, record in zip(session.hashes, held))
            answer = answer._replace(file=self._sessions.write(session, found))
        except (OSError, PenstockError) as error:
            answer = answer._replace(error=f"the session could not be written: {error}")
        self.put(OrderDone(answer))

    def _import(self, order: CacheOrder, now: float) -> None:
        """On the reader's thread: what is sound goes to the disk."""
        try:
            session, records = self._sessions.read(order.name, now)
            self._store.write(records)
            self.put(OrderDone(CacheAnswer(order.order_id), session))
        except PenstockError as error:
            self.put(OrderDone(CacheAnswer(order.order_id, str(error))))
