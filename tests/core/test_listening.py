"""Who listens to the pool knows what can be found in it, without ever asking."""

import pytest

from penstock.runtime.core.prefix import Namespace, packed
from tests.engine.answers import LIMITS, assert_right, drain, make_engine, make_request
from tests.engine.workloads import make_workload


class Mirror:
    """What a router keeps of a replica's cache."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes] = {}
        self.num_removed = 0

    def published(self, hash: bytes, parent: bytes, tokens: bytes) -> None:
        assert hash not in self.parents, "published twice"
        assert len(tokens) == len(packed(range(LIMITS.block_size)))
        self.parents[hash] = parent

    def removed(self, hash: bytes) -> None:
        del self.parents[hash]
        self.num_removed += 1


@pytest.mark.parametrize("seed", range(6))
def test_what_is_heard_is_what_can_be_found(seed: int) -> None:
    mirror = Mirror()
    engine = make_engine(LIMITS._replace(num_blocks=12, max_batch_tokens=16), depth=2)
    engine.scheduler.pool.listen(mirror)
    requests = make_workload(seed, 12)
    for request in requests:
        engine.submit(request)
    assert_right(requests, drain(engine, before_step=lambda _: check(engine.scheduler.pool.published, mirror)))
    check(engine.scheduler.pool.published, mirror)
    assert mirror.num_removed


def check(published: object, mirror: Mirror) -> None:
    assert published == mirror.parents.keys()


def test_a_first_block_is_named_after_its_namespace() -> None:
    mirror = Mirror()
    engine = make_engine()
    engine.scheduler.pool.listen(mirror)
    engine.submit(make_request(1, range(8), max_tokens=1, salt="s"))
    drain(engine)
    first, second = mirror.parents
    assert mirror.parents == {first: Namespace("s", "").hash, second: first}
