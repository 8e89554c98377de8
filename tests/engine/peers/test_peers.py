"""Answers with blocks of a peer are the answers without, whatever happens to the peer, the wire or the key."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.runtime.engine.peers import offers, server, shared
from penstock.runtime.engine.peers.counts import FAULTS
from penstock.runtime.engine.peers.remote import Peer, read_peer
from tests.engine.peers.pair import BLOCK, CopyingGated, Spoiled, Turning, expected, prompt, turning
from tests.machine import PATIENCE_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for seconds is no slow peer."""
    for name in ("SILENT_S", "LEAST_PATIENCE_S"):
        monkeypatch.setattr(f"penstock.runtime.engine.peers.remote.{name}", PATIENCE_S)


@pytest.fixture
def pair() -> Iterator[tuple[Turning, Turning]]:
    with turning() as prefill, turning() as decode:
        yield prefill, decode


def faults(engine: Turning) -> dict[str, int]:
    return {name: count for name, count in zip(FAULTS, engine.peers.counts.faults, strict=True) if count}


def test_a_prompt_computed_elsewhere_gives_the_same_answer(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    for seed in range(20):
        asked = prompt(seed, 40 + 13 * seed)
        first = prefill.submit(asked, 1)
        assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
        prefill.answer(first)
    counts = decode.peers.counts
    whole = sum((39 + 13 * seed) // BLOCK for seed in range(20))
    assert (counts.moved_blocks, counts.num_fetches, faults(decode)) == (whole, 20, {})
    assert decode.runner.num_prompt_tokens <= 20 * BLOCK
    assert prefill.peers.counts.offered_blocks == whole
    for engine in pair:
        engine.engine.check()


def test_blocks_that_another_request_has_brought_meanwhile_are_held_by_nobody(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    asked = prompt(3, 200)
    prefill.ask(asked, 1)
    for request_id in [decode.submit(asked, peer=prefill.peer()) for _ in range(4)]:
        assert decode.answer(request_id) == expected(asked)
    assert not decode.engine.scheduler.pool.num_arriving
    decode.engine.check()


def test_what_a_peer_computed_was_in_no_cache_and_what_it_had_was(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    for computes in (True, False):
        asked = prompt(computes, 80)
        first = prefill.submit(asked, 1)
        if not computes:
            prefill.answer(first)
        request_id = decode.submit(asked, peer=prefill.peer(computes=computes))
        assert decode.answer(request_id) == expected(asked)
        (prefix,) = [delta.prefix for delta in decode.deltas if delta.request_id == request_id and delta.prefix]
        assert prefix.num_tokens == 72
        assert prefix.num_reused == (0 if computes else 72)


def test_blocks_travel_while_the_rest_is_computed(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    prefill.runner.hold()
    asked = prompt(1, 200)
    first = prefill.submit(asked, 1)
    prefill.until(lambda: prefill.runner.is_held)
    answer = decode.submit(asked, peer=prefill.peer(computes=True))
    for num_steps in range(1, 4):
        prefill.until(prefill.has_mail)  # the reader asks, or has passed on what it got
        prefill.runner.tickets.release()
        decode.until(lambda: decode.peers.counts.fetched_blocks >= 32 // BLOCK * num_steps)  # noqa: B023
    prefill.runner.tickets.release(100)
    assert decode.answer(answer) == expected(asked)
    assert prefill.answer(first)
    assert decode.peers.counts.moved_blocks == 199 // BLOCK


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_failed_step_left_is_never_handed_out(depth: int) -> None:
    with turning(depth=depth) as prefill, turning() as decode:
        for seed in range(12):
            prefill.runner.failing = {prefill.runner.num_steps + 1 + seed % 5}
            asked = prompt(seed, 150)
            first = prefill.submit(asked, 1)
            assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
            prefill.until(lambda: any(one.request_id == first and one.finish for one in tuple(prefill.deltas)))  # noqa: B023


def test_any_byte_of_the_wire_changed_or_cut_off_costs_time_and_no_answer() -> None:
    """Of the greeting, of heads, of records, of seals."""
    asked = prompt(3, 60)
    with turning() as prefill:
        prefill.ask(asked, 1)
        port = int(prefill.peers.address.split()[0])
        num_spoiled = 0
        for at in (0, 20, 40, 50, 70, 82, 90, 110, 200, 400, 700, 900):
            for cuts in (False, True):
                wire = Spoiled(port, at, cuts=cuts)
                with turning() as decode:
                    assert decode.ask(asked, peer=prefill.peer(wire.port)) == expected(asked)
                    num_spoiled += bool(faults(decode))
                    assert sum(faults(decode).values()) <= 1
                wire.close()
        assert num_spoiled >= 22


@pytest.mark.parametrize("num_blocks", [256, 60])
def test_blocks_copied_beside_steps_give_the_same_answers(num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many small parts, each of which continues one that may still be on its way."""
    monkeypatch.setattr(offers, "MAX_READ_BYTES", 300)
    with turning(runner=CopyingGated) as prefill, turning(runner=CopyingGated, num_blocks=num_blocks) as decode:
        for seed in range(4):
            asked = prompt(seed, 400)
            prefill.submit(asked, 1)
            assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
        assert not faults(decode)
        assert decode.peers.counts.fetched_blocks > 120
        assert not decode.peers.is_fetching
        decode.engine.check()


def test_a_copy_in_that_fails_leaves_the_rest_to_be_computed() -> None:
    asked = prompt(9, 400)
    with turning(runner=CopyingGated) as prefill, turning(runner=CopyingGated) as decode:
        prefill.ask(asked, 1)
        begin = decode.runner.begin_write

        def failing(*args: Any) -> Any:
            copy = begin(*args)
            copy.is_failing = True
            return copy

        decode.runner.begin_write = failing
        assert decode.ask(asked, peer=prefill.peer()) == expected(asked)
        assert decode.peers.counts.fetched_blocks == 0
        decode.engine.check()


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked for goes through shared memory, in small pieces."""
    monkeypatch.setattr(server, "LEAST_SHARED_BYTES", 0)
    monkeypatch.setattr(server, "FRAME_BYTES", 700)


def segments() -> set[str]:
    return {path.name for path in shared.FOLDER.glob(shared.PREFIX + "*")}


@pytest.mark.usefixtures("shares")
def test_blocks_that_come_through_shared_memory_give_the_same_answers() -> None:
    before = segments()
    with turning() as prefill, turning() as decode:
        for seed in range(3):
            asked = prompt(seed, 400)
            prefill.submit(asked, 1)
            assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
        assert not faults(decode)
        assert prefill.peers.counts.shared_peers == 1
        assert decode.peers.counts.fetched_blocks > 100
        assert segments() == before, "no name is left behind"


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize("where", ["made", "opened"])
def test_without_shared_memory_blocks_come_through_the_connection(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "create" if where == "made" else "open_segment", lambda _: None)
    asked = prompt(1, 400)
    with turning() as prefill, turning() as decode:
        prefill.ask(asked, 1)
        assert decode.ask(asked, peer=prefill.peer()) == expected(asked)
        assert not faults(decode)
        assert decode.peers.counts.fetched_blocks > 40
        assert prefill.peers.counts.shared_peers == 0


@pytest.mark.usefixtures("shares")
def test_what_is_changed_in_shared_memory_is_a_fault_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    view = shared.SharedSegment.view

    def changed(segment: shared.SharedSegment, place: bytes) -> memoryview:
        data = bytearray(view(segment, place))
        data[len(data) // 2] ^= 1
        return memoryview(data)

    monkeypatch.setattr(shared.SharedSegment, "view", changed)
    asked = prompt(2, 400)
    with turning() as prefill, turning() as decode:
        prefill.ask(asked, 1)
        assert decode.ask(asked, peer=prefill.peer()) == expected(asked)
        assert faults(decode) == {"damaged": 1}


def test_a_segment_is_only_what_it_was_made_as() -> None:
    made = shared.create(4096)
    assert made is not None
    opened = shared.open_segment(made.words)
    assert opened is not None
    assert bytes(opened.view(made.place([b"one", memoryview(b"two")]))) == b"onetwo"
    for nonsense in (b"", bytes(16), shared.PLACE.pack(8000, 900), shared.PLACE.pack(0, 5000)):
        if nonsense != bytes(16):
            with pytest.raises(OSError, match="shared memory"):
                opened.view(nonsense)
    made.hide()
    assert shared.open_segment(made.words) is None
    for words in (b"", shared.SIZE.pack(8) + b"../etc/passwd", shared.SIZE.pack(8) + shared.PREFIX.encode() + b"../x"):
        assert shared.open_segment(words) is None
    made.close()
    opened.close()


def test_a_peer_that_is_not_who_it_should_be_is_not_read(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    asked = prompt(4, 60)
    prefill.ask(asked, 1)
    port = int(prefill.peers.address.split()[0])
    with turning(key=b"another key") as stranger:
        assert stranger.ask(asked, peer=prefill.peer()) == expected(asked)
        assert faults(stranger) == {"refused": 1}
    with turning(format="another model") as other:
        assert other.ask(asked, peer=prefill.peer()) == expected(asked)
        assert faults(other) == {"absent": 1}
    earlier = Peer("127.0.0.1", port, bytes(16)).encode()
    assert decode.ask(asked, peer=earlier) == expected(asked)
    assert faults(decode) == {"stale": 1}
    for nonsense in ("", "nobody", "127.0.0.1:99999/" + "0" * 32 + "/h", "a b:1/" + "0" * 32 + "/h"):
        assert decode.ask(prompt(5), peer=nonsense) == expected(prompt(5))
    assert decode.peers.counts.num_fetches == 1
    assert prefill.peers.counts.refused_peers >= 1


def test_a_peer_that_dies_or_was_never_there_leaves_the_rest_to_be_computed() -> None:
    asked = prompt(6, 200)
    with turning() as decode:
        with turning() as prefill:
            prefill.runner.hold()
            prefill.submit(asked, 1)
            prefill.until(lambda: prefill.runner.is_held)
            peer = prefill.peer(computes=True)
            answer = decode.submit(asked, peer=peer)
            prefill.until(prefill.has_mail)
            prefill.runner.tickets.release(2)
            decode.until(lambda: decode.peers.counts.fetched_blocks >= 2)
            prefill.peers.close()  # as a process that is killed: its connections are reset
            assert decode.answer(answer) == expected(asked)
            prefill.runner.tickets.release(100)
        assert faults(decode) == {"lost": 1}
        assert decode.ask(prompt(7), peer=peer) == expected(prompt(7))
        assert faults(decode) == {"lost": 1, "unreachable": 1}


def test_a_request_that_is_cancelled_while_its_blocks_come_is_over(pair: tuple[Turning, Turning]) -> None:
    prefill, decode = pair
    prefill.runner.hold()
    asked = prompt(8, 200)
    prefill.submit(asked, 1)
    prefill.until(lambda: prefill.runner.is_held)
    answer = decode.submit(asked, peer=prefill.peer(computes=True))
    prefill.until(prefill.has_mail)
    prefill.runner.tickets.release(1)
    decode.until(lambda: decode.peers.counts.fetched_blocks >= 1)
    decode.engine.cancel(answer)
    decode.until(lambda: any(one.request_id == answer and one.finish for one in tuple(decode.deltas)))
    prefill.runner.tickets.release(100)
    decode.until(lambda: decode.peers.counts.num_fetches == 1)
    assert decode.ask(asked) == expected(asked)
    decode.engine.check()


def test_a_prompt_that_never_comes_is_waited_for_a_while_and_then_computed(
    pair: tuple[Turning, Turning], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    monkeypatch.setattr("penstock.runtime.engine.peers.server.GRACE_S", 0.2)
    monkeypatch.setattr("penstock.runtime.engine.peers.server.ALIVE_S", 0.1)
    asked = prompt(9, 60)
    assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
    assert faults(decode) == {"absent": 1}


@pytest.mark.parametrize("mode", ["h", "c"])
def test_a_peer_is_read_as_it_was_written(mode: str) -> None:
    for host in ("127.0.0.1", "replica-3.internal", "::1"):
        peer = Peer(host, 4000, bytes(range(16)), mode == "c")
        assert read_peer(peer.encode()) == peer


@pytest.mark.parametrize("is_there", [False, True])
def test_blocks_for_another_machine_are_read_from_memory_where_nixl_is_installed(
    is_there: bool, pair: tuple[Turning, Turning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it they go through the connection; answers are the same."""
    monkeypatch.setattr(server, "LEAST_SHARED_BYTES", 0)
    monkeypatch.setattr("penstock.runtime.engine.peers.channel._is_local", lambda connection: False)
    if is_there:
        pytest.importorskip("nixl")
    else:
        monkeypatch.setattr("penstock.runtime.engine.peers.rdma.is_installed", lambda: False)
    prefill, decode = pair
    for ways in (prefill.peers._server, decode.peers.remote):
        prefill.until(lambda ways=ways: not is_there or ways._spares._spare is not None)
    for seed in range(3):
        asked = prompt(40 + seed, 200)
        first = prefill.submit(asked, 1)
        assert decode.ask(asked, peer=prefill.peer(computes=True)) == expected(asked)
        prefill.answer(first)
    assert prefill.peers.counts.shared_peers == is_there
    assert faults(decode) == {}
