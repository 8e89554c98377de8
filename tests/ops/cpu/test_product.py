"""Products with packed matrices: every instruction set gives the same bits, and each row its own whoever stands beside it."""

import pytest
import torch

from penstock.runtime.ops.cpu.library import KERNELS, Library, matrix_of, open_library
from penstock.runtime.ops.quantized.packed import multiply, pack
from tests.machine import NUM_THREADS
from tests.ops.cpu.matrices import BY_ROW, KINDS, random_matrix
from tests.ops.examples.sampling_sample import packed as packed_bits

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 40, 70)


def opened(kernels: str, num_threads: int = NUM_THREADS) -> Library:
    library = open_library(num_threads, kernels)
    if library is None:
        pytest.skip(f"the native library is not built or this machine lacks its {kernels} kernels")
    return library


def rows(count: int, size: int, seed: int = 3) -> torch.Tensor:
    x = torch.randn((count, size), generator=torch.Generator().manual_seed(seed))
    x[0, : size // 2] = 0  # a group of zeros
    return x * torch.logspace(-3, 3, count)[:, None]


@pytest.mark.parametrize("kind", [*KINDS, BY_ROW])
@pytest.mark.parametrize("kernels", KERNELS)
def test_every_kernel_gives_the_bits_of_the_portable_one(kernels: str, kind: str) -> None:
    library, portable = opened(kernels), opened("portable")
    for num_rows, num_columns in ((33, 32), (64, 96), (80, 576)):
        packed = pack(random_matrix(kind, num_rows, num_columns))
        matrix = matrix_of(packed)
        for count in ROWS:
            x = rows(count, num_columns)
            mine = library.multiply(x, matrix, number=8)
            assert torch.equal(mine, portable.multiply(x, matrix, number=8)), (num_rows, num_columns, count)


@pytest.mark.parametrize("kind", [*KINDS, BY_ROW])
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_kernel_equals_the_definition(kernels: str, kind: str) -> None:
    library = opened(kernels)
    packed = pack(random_matrix(kind, 50, 160))
    x = rows(21, 160)
    definition = multiply(x, packed)
    tolerance = 2e-6 * (x.abs().amax(1, keepdim=True) * 160)
    assert ((library.multiply(x, matrix_of(packed), number=8) - definition).abs() <= tolerance).all()


@pytest.mark.parametrize("kernels", KERNELS)
def test_whole_numbers_under_one_scale_give_the_bits_of_the_definition(kernels: str) -> None:
    """Columns that are no whole chunk, outputs that are no whole tile, more tiles than are handed on together."""
    library = opened(kernels)
    for num_rows, num_columns in ((33, 32), (100, 96), (80, 576)):
        packed = pack(random_matrix(BY_ROW, num_rows, num_columns))
        for count in ROWS:
            x = rows(count, num_columns)
            assert torch.equal(library.multiply(x, matrix_of(packed)), multiply(x, packed)), (num_rows, count)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_bf16_come_as_near_as_bf16_allows(kind: str) -> None:
    library = opened("amx")
    for num_rows, num_columns, count in ((33, 32, 1), (48, 96, 17), (80, 576, 70), (16, 64, 33)):
        matrix = random_matrix(kind, num_rows, num_columns)
        packed = pack(matrix)
        x = rows(count, num_columns)
        exact = x @ matrix.dequantize().t()
        assert (library.multiply(x, matrix_of(packed), number=16) - exact).norm() < 6e-3 * exact.norm()


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_row_does_not_know_its_neighbours(kernels: str) -> None:
    library = opened(kernels)
    packed = pack(random_matrix("4 bits", 48, 128))
    x = rows(40, 128)
    together = library.multiply(x, matrix_of(packed), is_invariant=True)
    for index in (0, 7, 16, 39):
        alone = library.multiply(x[index : index + 1], matrix_of(packed), is_invariant=True)
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize("kind", ["8 bits", BY_ROW])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_spoils_its_own_row_alone(kernels: str, spoiled: float, kind: str) -> None:
    library = opened(kernels)
    packed = pack(random_matrix(kind, 48, 128))
    for count, bad in ((3, 1), (20, 5)):
        x = rows(count, 128)
        clean = library.multiply(x, matrix_of(packed), number=8)
        x[bad, 77] = spoiled
        result = library.multiply(x, matrix_of(packed), number=8)
        assert not torch.isfinite(result[bad]).any()
        others = torch.arange(count) != bad
        assert torch.equal(result[others], clean[others])


def test_threads_share_the_work_without_changing_it() -> None:
    packed = pack(random_matrix("4 bits", 200, 128))
    x = rows(37, 128)
    results = [opened("", threads).multiply(x, matrix_of(packed), number=8) for threads in (1, 2, 5)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_softcap_bends_the_scores() -> None:
    packed = pack(random_matrix("8 bits", 35, 64))
    x = rows(3, 64)
    library = opened("")
    plain, capped = library.multiply(x, matrix_of(packed)), library.multiply(x, matrix_of(packed), softcap=2.0)
    torch.testing.assert_close(capped, 2.0 * torch.tanh(plain / 2.0), rtol=1e-5, atol=1e-6)


def test_unknown_kernels_are_not_opened() -> None:
    assert open_library(1, "abacus") is None
    assert open_library(0) is None


@pytest.mark.parametrize("kind", [*KINDS, BY_ROW])
@pytest.mark.parametrize("kernels", KERNELS)
def test_the_likeliest_is_the_first_of_the_largest(kernels: str, kind: str) -> None:
    library = opened(kernels)
    for num_rows, num_columns in ((5, 32), (70, 96), (600, 64)):
        once = random_matrix(kind, num_rows, num_columns)
        twice = once.take(torch.cat((torch.arange(num_rows), torch.arange(num_rows))))  # every number has an equal
        matrix = matrix_of(packed := pack(twice))
        for count in (1, 2, 8, 17, 24, 40):
            x = rows(count, num_columns)
            places = library.likeliest(x, matrix)
            assert torch.equal(places, library.multiply(x, matrix).argmax(1)), (num_rows, count)
            assert (places < num_rows).all()
        del packed


@pytest.mark.parametrize("kernels", KERNELS)
def test_of_what_is_allowed_the_likeliest_is_chosen(kernels: str) -> None:
    """Some rows have a mask, some none; one mask allows nothing."""
    library = opened(kernels)
    generator = torch.Generator().manual_seed(3)
    for num_rows, num_columns in ((5, 32), (70, 96), (600, 64)):
        packed = pack(random_matrix("8 bits", num_rows, num_columns))
        for count in (1, 8, 24, 40):
            x = rows(count, num_columns)
            are_allowed = torch.rand((4, num_rows), generator=generator) < torch.tensor([[0.0], [0.1], [0.9], [1.0]])
            masks = torch.arange(count) % 5 - 1
            places = library.likeliest(x, matrix_of(packed), allowed=(packed_bits(are_allowed), masks))
            scores = library.multiply(x, matrix_of(packed))
            for row, mask in enumerate(masks.tolist()):
                allowed = are_allowed[mask] if mask >= 0 else torch.ones(num_rows, dtype=torch.bool)
                expected = scores[row].masked_fill(~allowed, -torch.inf).argmax() if allowed.any() else -2
                assert places[row] == expected, (num_rows, count, mask)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_has_no_likeliest_and_spoils_no_other(kernels: str, fault: float) -> None:
    library = opened(kernels)
    packed = pack(random_matrix("8 bits", 70, 96))
    for count in (1, 5, 30):
        x = rows(count, 96)
        well = library.likeliest(x, matrix_of(packed))
        x[count // 2, 7] = fault
        places = library.likeliest(x, matrix_of(packed))
        assert places[count // 2] == -1
        others = torch.arange(count) != count // 2
        assert torch.equal(places[others], well[others])
