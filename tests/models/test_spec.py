"""What models take, against figures worked out by hand from their published shapes."""

import pytest

from penstock.runtime.models import catalog

KV_BYTES_PER_TOKEN = {
    "llama-3-8b": 2 * 32 * 8 * 128 * 2,
    "llama-3-70b": 2 * 80 * 8 * 128 * 2,
    "llama-3.1-405b": 2 * 126 * 8 * 128 * 2,
    "mixtral-8x7b": 2 * 32 * 8 * 128 * 2,
    "qwen3-30b-a3b": 2 * 48 * 4 * 128 * 2,
    "deepseek-v3": 61 * (512 + 64) * 2,
    "gemma-3-27b": 2 * 62 * 16 * 128 * 2,
}
"""In 16 bits: 131,072, 327,680, 516,096, 131,072, 98,304, 70,272, 507,904."""


@pytest.mark.parametrize(("name", "size"), KV_BYTES_PER_TOKEN.items())
def test_a_token_takes_what_its_layers_keep_of_it(name: str, size: int) -> None:
    spec = catalog.find(name)
    assert spec.kv_bytes_per_token(2) == size
    assert spec.kv_bytes_per_token(1) == size // 2


@pytest.mark.parametrize("length", [1, 1000, 1024, 1025, 8192, 131_072])
def test_local_layers_see_no_more_than_their_window(length: int) -> None:
    """Gemma 3 27B: 62 layers, every sixth of which sees all; the others see 1,024 tokens."""
    token = 2 * 16 * 128 * 2
    whole, local = 10, 52
    expected = token * (whole * length + local * min(length, 1024))
    assert catalog.find("gemma-3-27b").kv_bytes_in_sight(length, 2) == expected


def test_without_windows_all_is_in_sight() -> None:
    spec = catalog.find("llama-3-70b")
    assert spec.kv_bytes_in_sight(5000, 2) == 5000 * spec.kv_bytes_per_token(2)


def test_a_latent_does_not_grow_with_heads() -> None:
    small, large = catalog.find("deepseek-v2-lite"), catalog.find("deepseek-v3")
    of_a_layer = {spec.layers[0].attention.kv_values_per_token for spec in (small, large)}
    assert of_a_layer == {576}
    assert small.layers[0].attention.num_heads == 16 < large.layers[0].attention.num_heads == 128
