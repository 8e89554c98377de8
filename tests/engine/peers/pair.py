"""Engines with oracles for models, each on a thread of its own, that fetch blocks from each other."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

from penstock.runtime.core.batch import Batch, Delta, StepOutput
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import Masks
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.oracle import OracleRunner
from penstock.runtime.engine.peers.exchange import PeerExchange
from penstock.runtime.engine.peers.remote import Peer
from penstock.runtime.engine.tiers.record import format_digest
from tests.engine.answers import expected_tokens
from tests.engine.tiers.test_state_machine import SlowCopies
from tests.machine import PATIENCE_S

BLOCK = 8
VOCAB = 97
KEY = b"a key that all replicas know"
IDS = itertools.count()


class Gated(OracleRunner):
    """Steps that wait to be let through, and that fail where told to."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, BLOCK, vocab_size=VOCAB)
        self.tickets = threading.Semaphore(10**9)
        self.failing: set[int] = set()
        self.is_held = False
        """The loop waits in a launch."""
        self.num_steps = self.num_prompt_tokens = 0

    def hold(self) -> None:
        self.tickets = threading.Semaphore(0)

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
        self.is_held = True
        assert self.tickets.acquire(timeout=PATIENCE_S)
        self.is_held = False
        self.num_steps += 1
        if self.num_steps in self.failing:
            raise RuntimeError("a step that fails")
        self.num_prompt_tokens += sum(chunk.length for chunk in batch.chunks if len(chunk.token_ids) > 1)
        return super().launch(batch, masks)


class CopyingGated(Gated, SlowCopies):
    """Copies beside its steps; until a copy in is over, nothing lies there."""


class Turning:
    """An engine whose loop runs on a thread of its own."""

    def __init__(
        self,
        key: bytes = KEY,
        format: str = "oracle",
        num_blocks: int = 256,
        depth: int = 1,
        runner: type[Gated] = Gated,
    ) -> None:
        limits = Limits(num_blocks, BLOCK, 1024, 32, 16, 64, 100_000)
        scheduler = Scheduler(limits)
        self.runner = runner(num_blocks)
        named = format_digest(format, BLOCK)
        self.peers = PeerExchange(scheduler, self.runner, named, key, "127.0.0.1")
        self.engine = Engine(scheduler, self.runner, time.monotonic, depth=depth, peers=self.peers)
        self.deltas: list[Delta] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            deltas = self.engine.step()
            self.deltas += deltas
            if not deltas and not self.engine.scheduler.has_work:
                self.engine.wait(0.02)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self.engine.close()

    def peer(self, port: int | None = None, *, computes: bool = False) -> str:
        own, generation, _ = self.peers.address.split()
        return Peer("127.0.0.1", port or int(own), bytes.fromhex(generation), computes).encode()

    def submit(self, prompt: tuple[int, ...], num_tokens: int = 5, peer: str = "") -> int:
        request_id = next(IDS)
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self.engine.submit(Request(request_id=request_id, prompt=prompt, params=params, peer=peer))
        return request_id

    def has_mail(self) -> bool:
        """The loop is held, and somebody asks for something that it has not read."""
        return self.runner.is_held and not self.engine._inbox.empty()

    def until(self, is_true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < end_s
            time.sleep(0.001)

    def answer(self, request_id: int) -> list[int]:
        self.until(lambda: any(one.request_id == request_id and one.finish for one in tuple(self.deltas)))
        own = [delta for delta in self.deltas if delta.request_id == request_id]
        assert own[-1].finish is not None
        assert own[-1].finish.fault is None, own[-1].finish
        return [token for delta in own for token in delta.token_ids]

    def ask(self, prompt: tuple[int, ...], num_tokens: int = 5, peer: str = "") -> list[int]:
        return self.answer(self.submit(prompt, num_tokens, peer))


@contextlib.contextmanager
def turning(*args, **options) -> Iterator[Turning]:
    made = Turning(*args, **options)
    try:
        yield made
    finally:
        made.close()


def prompt(seed: int, num_tokens: int = 100) -> tuple[int, ...]:
    return tuple(Random(seed).choices(range(VOCAB), k=num_tokens))


def expected(prompt: tuple[int, ...], num_tokens: int = 5) -> list[int]:
    return expected_tokens(prompt, SamplingParams(temperature=0.0), 0, num_tokens, VOCAB)


class Spoiled:
    """A way to a peer on which one byte of what it sends is changed, or after so many nothing more comes."""

    def __init__(self, port: int, at: int, *, cuts: bool) -> None:
        self._target, self._at, self._cuts = port, at, cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._carry, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, self._at), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, at: int | None) -> None:
        num_carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if at is not None and num_carried <= at < num_carried + len(data):
                    place = at - num_carried
                    if self._cuts:
                        sink.sendall(data[:place])
                        break
                    data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                num_carried += len(data)
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()
