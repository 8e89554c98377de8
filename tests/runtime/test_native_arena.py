"""What is kept in a room is the same bytes, side by side at the beginnings of cache lines."""

import torch

from penstock.runtime.execution.native.arena import CACHE_LINE, Arena


def test_what_is_kept_is_a_copy_at_the_beginning_of_a_cache_line() -> None:
    arena = Arena(1000)
    numbers = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (100, 64, 1)]
    kept = [arena.keep(each) for each in numbers]
    for mine, theirs in zip(kept, numbers):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() % CACHE_LINE == 0
        assert mine.data_ptr() != theirs.data_ptr()
    assert [each.data_ptr() - kept[0].data_ptr() for each in kept] == [0, 128, 192]
    kept[1].zero_()
    assert torch.equal(kept[0], numbers[0])
    assert torch.equal(kept[2], numbers[2])


def test_what_finds_no_room_stays_where_it_is() -> None:
    arena = Arena(128)
    large = torch.zeros(4096, dtype=torch.uint8)
    assert arena.keep(large) is large
    assert torch.equal(arena.keep(large[:128]), large[:128])


def test_a_room_that_cannot_be_had_keeps_nothing() -> None:
    numbers = torch.zeros(64, dtype=torch.uint8)
    assert Arena(1 << 60).keep(numbers) is numbers


def test_a_room_outlives_whoever_made_it() -> None:
    kept = Arena(64).keep(torch.arange(64, dtype=torch.uint8))
    assert torch.equal(kept, torch.arange(64, dtype=torch.uint8))
