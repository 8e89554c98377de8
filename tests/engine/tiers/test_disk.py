"""Records survive the process; what is damaged is a miss; the bound holds."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.engine.tiers import disk
from penstock.runtime.engine.tiers.disk import DiskTier
from penstock.runtime.engine.tiers.host import HostTier
from penstock.runtime.engine.tiers.policy import Ghosts, Rates
from penstock.runtime.engine.tiers.reading import PartReader
from penstock.runtime.engine.tiers.record import KVRecord, decode_record, encode_record, format_digest, key_of

Opened = Callable[..., DiskTier]
FORMAT = format_digest("a model", "float32", 16)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens tiers, and closes them after the test."""
    with ExitStack() as stack:

        def open_tier(folder: Path, max_bytes: int = 1 << 20) -> DiskTier:
            tier = DiskTier(folder, max_bytes)
            stack.callback(tier.close)
            return tier

        yield open_tier


def record(number: int, size: int = 1000) -> tuple[bytes, KVRecord]:
    numbers = random.Random(number)
    made = KVRecord(numbers.randbytes(16), numbers.randbytes(64), numbers.randbytes(size))
    return key_of(FORMAT, made.hash), made


def test_a_record_is_itself_or_nothing() -> None:
    """Every single flipped bit, every shortening, another key, another hash: a miss."""
    key, made = record(1, size=40)
    data = encode_record(key, made)
    assert decode_record(key, made.hash, data) == made
    assert decode_record(record(2)[0], made.hash, data) is None
    assert decode_record(key, record(2)[1].hash, data) is None
    for length in range(len(data)):
        assert decode_record(key, made.hash, data[:length]) is None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_record(key, made.hash, bytes(flipped)) is None


def test_any_part_of_a_format_names_other_records() -> None:
    formats = {format_digest(*parts) for parts in (("a", "b"), ("ab",), ("a", "b", ""), ("a", "c"), ("b", "a"))}
    assert len(formats) == 5


def test_records_survive_the_process_that_wrote_them(tmp_path: Path, opened: Opened) -> None:
    made = [record(number) for number in range(50)]
    tier = opened(tmp_path)
    tier.put(made)
    tier.close()
    again = opened(tmp_path)
    assert len(again) == 50
    assert all(again.get(key, each.hash) == each for key, each in made)
    assert again.num_faults == 0


def test_the_disk_never_holds_more_than_it_may(tmp_path: Path, opened: Opened) -> None:
    bound = 64_000
    tier = opened(tmp_path, bound)
    for number in range(400):
        tier.put([record(number)])
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= bound
    key, newest = record(399)
    assert tier.get(key, newest.hash) == newest
    assert 10 < len(tier) < 64
    oldest_key, oldest = record(0)
    assert tier.get(oldest_key, oldest.hash) is None
    assert tier.num_faults == 0


def test_what_is_used_stays_longest(tmp_path: Path, opened: Opened) -> None:
    tier = opened(tmp_path, 64_000)
    key, kept = record(0)
    tier.put([(key, kept)])
    for number in range(1, 200):
        tier.put([record(number)])
        assert tier.get(key, kept.hash) == kept


def test_damage_is_a_miss_a_deletion_and_a_count(tmp_path: Path, opened: Opened) -> None:
    made = [record(number) for number in range(20)]
    tier = opened(tmp_path)
    tier.put(made)
    (segment,) = tmp_path.rglob("*.kv")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    found = [tier.get(key, each.hash) for key, each in made]
    assert found.count(None) == 1
    assert all(got in (None, each) for got, (_, each) in zip(found, made, strict=True))
    assert (tier.num_faults, len(tier)) == (1, 19)
    segment.write_bytes(b"")
    assert not any(tier.get(key, each.hash) for key, each in made)
    segment.unlink()
    tier.put(made[:1])
    key, each = made[0]
    assert tier.get(key, each.hash) == each


def test_a_killed_writer_leaves_a_folder_that_opens(tmp_path: Path, opened: Opened) -> None:
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, '.');"
        "from tests.engine.tiers.test_disk import DiskTier, record;"
        f"tier = DiskTier(Path({str(tmp_path)!r}), 1 << 20);"
        "tier.put([record(number) for number in range(30)]);"
        "tier._index.execute('BEGIN'); tier._append(*[record(99)[0], b'x' * 5000]); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    tier = opened(tmp_path)
    assert len(tier) == 30
    assert all(tier.get(key, each.hash) == each for key, each in map(record, range(30)))
    tier.put([record(99)])
    key, each = record(99)
    assert tier.get(key, each.hash) == each


def test_engines_beside_each_other_have_a_part_each(tmp_path: Path, opened: Opened, monkeypatch: Any) -> None:
    """As replicas of one server have; the next process to come finds what the first of them left."""
    monkeypatch.setattr(disk, "MAX_PARTS", 2)
    first, second = opened(tmp_path), opened(tmp_path)
    first.put([record(1)])
    second.put([record(2)])
    assert (len(first), len(second)) == (1, 1)
    with pytest.raises(ConfigError, match="in use by 2 other engines"):
        opened(tmp_path)
    first.close()
    key, kept = record(1)
    assert opened(tmp_path).get(key, kept.hash) == kept


def test_a_disk_that_cannot_be_written_costs_nothing_but_hits(tmp_path: Path, opened: Opened) -> None:
    tier = opened(tmp_path)
    tier.put([record(1)])
    tier._index.execute("DROP TABLE segments")  # as good as any fault: every write fails from now on
    tier.put([record(2)])
    assert tier.num_faults
    key, each = record(2)
    assert tier.get(key, each.hash) is None


def test_host_memory_is_bounded_and_hands_on_what_leaves() -> None:
    tier = HostTier(5_600)
    left = [gone for number in range(8) for gone in tier.put(*record(number))]
    assert [key for key, _ in left] == [record(number)[0] for number in range(3)]
    assert tier.num_bytes <= 5_600
    assert tier.put(*record(9, size=10_000)) == [record(9, size=10_000)]
    assert len(tier.drain()) == 5
    assert (len(tier), tier.num_bytes) == (0, 0)


def test_reading_is_chosen_while_it_is_faster_than_computing() -> None:
    rates = Rates()
    assert rates.is_reading_faster(16, 1000, 0)
    rates.note_read(1_000_000, 1.0)
    rates.note_prompt(1000, 1.0)
    assert rates.is_reading_faster(100, 90_000, 0)
    assert not rates.is_reading_faster(100, 110_000, 0)
    assert not rates.is_reading_faster(100, 90_000, 20_000)


def test_last_pieces_of_prompts_do_not_make_computing_look_slow() -> None:
    rates = Rates()

    def step(num_tokens: int) -> None:
        chunk = Chunk(0, 0, num_tokens, (1,) * num_tokens, (), samples=True, arrival=None)
        rates.note_step(Batch(0, (chunk,)), 0.003)

    for _ in range(8):
        step(64)
        step(4)
    assert rates.prompt_tokens_s == pytest.approx(64 / 0.003)
    for _ in range(5000):  # a load of short prompts alone is learnt in the end
        step(4)
    assert rates.prompt_tokens_s == pytest.approx(4 / 0.003, rel=0.01)


def test_ghosts_are_bounded() -> None:
    ghosts = Ghosts(most=3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        ghosts.note(name)
    assert [name in ghosts for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


@pytest.mark.parametrize("is_cold", [False, True])
def test_parts_of_a_file_are_the_same_in_the_page_cache_and_past_it(tmp_path: Path, is_cold: bool) -> None:
    data = random.Random(3).randbytes(900_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    reader = PartReader()
    for offset, size in ((0, 100), (0, 300_000), (1, 300_000), (4096, 65_536), (700_001, 199_999), (5, 70_000)):
        if is_cold:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert reader.read(path, offset, size) == data[offset : offset + size]
    assert len(reader.read(path, 850_000, 100_000)) <= 50_000, "no more than there is"
    with pytest.raises(FileNotFoundError):
        reader.read(tmp_path / "nothing", 0, 100_000)
