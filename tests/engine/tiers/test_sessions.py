"""Sessions: kept for the seconds in which agents come back, within a tenant's share; given out and taken in whole."""

from pathlib import Path
from typing import Any

from penstock.runtime.core.request import Request
from penstock.runtime.engine.tiers import sessions
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder
from tests.engine.answers import make_request
from tests.engine.tiers.test_laws import SMALL, Served, prompt

ROOMY = SMALL._replace(num_blocks=60)


def turn(number: int, session: str, tokens: tuple[int, ...], tenant: str = "a") -> Request:
    return make_request(number, tokens, session=session, tenant=tenant, max_tokens=4)


def told(served: Served, action: str, name: str = "", seconds: float = 0.0) -> CacheAnswer:
    served.engine.order(CacheOrder(7, action, name, seconds))
    served.engine.step()
    served.tiers.store.reader.submit(int).result()
    served.engine.step()
    (answer,) = served.engine.cache_answers()
    return answer


def test_a_turn_is_kept_while_others_come_and_forgotten_after(monkeypatch: Any) -> None:
    """Its blocks outlive a load that would have taken them; when the time is over they may go."""
    monkeypatch.setattr(sessions, "RETAIN_S", 1e6)
    for session in ("", "mine"):
        served = Served(ROOMY)
        served.ask(turn(1, session, prompt(1)))
        for number in range(2, 12):
            served.ask(make_request(number, prompt(number)))
        served.ask(turn(20, session, (*prompt(1), 5)))
        hit = served.answers[20, 0].prefix
        assert hit is not None
        assert (hit.num_tokens - hit.host > 0) == bool(session)
        served.check()
    served.scheduler.pool.unpin_expired(served.scheduler.roster.now + sessions.RETAIN_S + 1)
    assert not served.scheduler.pool.num_pinned


def test_a_tenant_keeps_no_more_than_its_share() -> None:
    served = Served(ROOMY)
    for number in range(1, 12):
        served.ask(turn(number, f"session {number}", prompt(number), tenant="a" if number % 2 else "b"))
        assert served.scheduler.pool.num_pinned <= ROOMY.num_blocks * sessions.RETAINED_FRACTION + 9
    served.check()


def test_turns_of_a_conversation_are_one_session_wherever_their_blocks_lie() -> None:
    served = Served(ROOMY)
    served.ask(turn(1, "first", prompt(1)))
    tokens = (*prompt(1), *served.answers[1, 0].tokens)
    served.ask(turn(2, "second", (*tokens, 9)))
    (only,) = told(served, "list").sessions
    assert (only.name, only.tenant, only.num_tokens) == ("second", "a", len(tokens) + 5)
    assert only.device == only.num_tokens // ROOMY.block_size * ROOMY.block_size
    assert told(served, "pin", "nobody").error
    assert not told(served, "pin", "a/second", 1000.0).error
    assert told(served, "drop", "second").sessions == ()
    served.ask(turn(3, "", prompt(1)))
    hit = served.answers[3, 0].prefix
    assert hit is not None
    assert hit.num_tokens == 0
    served.check()


def test_a_session_goes_from_one_engine_to_another_as_a_file(tmp_path: Path) -> None:
    one = Served(ROOMY, disk=DiskTier(tmp_path / "one", 1 << 20))
    one.ask(turn(1, "talk", prompt(1, 50)))
    tokens = (*prompt(1, 50), *one.answers[1, 0].tokens)
    answer = told(one, "export", "talk")
    assert not answer.error
    one.close()
    other = Served(ROOMY, disk=DiskTier(tmp_path / "other", 1 << 20))
    exports = tmp_path / "other" / "exports"
    exports.mkdir()
    (exports / "talk.kv").write_bytes(Path(answer.file).read_bytes())
    assert not told(other, "import", "talk").error
    other.ask(turn(2, "talk", (*tokens, 3)))
    hit = other.answers[2, 0].prefix
    assert hit is not None
    assert hit.disk == len(tokens) // ROOMY.block_size * ROOMY.block_size
    other.check()
    damaged = bytearray((exports / "talk.kv").read_bytes())
    for place in (len(damaged) // 2, 40):
        flipped = bytearray(damaged)
        flipped[place] ^= 8
        (exports / "bad.kv").write_bytes(flipped)
        assert told(other, "import", "bad").error
    assert "no name of a file" in told(other, "import", "../one/0/lock").error
    other.tiers.sessions._format = b"another model..."
    assert "another model" in told(other, "import", "talk").error
    other.close()
