"""Laws of encoding: a text's vector is its own, whoever it is encoded with."""

import random

import numpy as np
import pytest
import torch

from penstock.errors import RequestError
from penstock.runtime.execution.eager.encoder import TextEncoder
from penstock.runtime.execution.load.parameters import dummy_model
from penstock.runtime.layers.encoder import Encoder
from penstock.runtime.models.spec import GQA, Layer, ModelSpec, Norm, PlainMLP


def encoder(pooling: str = "mean") -> Encoder:
    attention = GQA(4, 4, 16, None, 0.25, causal=False, qkv_bias=True, out_bias=True)
    spec = ModelSpec(
        architecture="bert",
        hidden_size=64,
        vocab_size=100,
        layers=(Layer(attention, PlainMLP(96, "gelu", bias=True), "residual"),) * 2,
        norm=Norm("layer", 1e-12),
        max_context=64,
        learned_positions=64,
        token_types=2,
        embedding_norm=True,
        pooling=pooling,
    )
    model = dummy_model(spec, torch.device("cpu"), torch.float32)
    assert isinstance(model, Encoder)
    return model


def texts(count: int) -> list[list[int]]:
    source = random.Random(2)
    return [[source.randrange(100) for _ in range(source.randrange(1, 65))] for _ in range(count)]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_many_together_equal_one_by_one(pooling: str) -> None:
    model = encoder(pooling)
    together = TextEncoder(model, max_batch_tokens=300).encode(texts(40))
    single = TextEncoder(model)
    np.testing.assert_allclose(together, np.concatenate([single.encode([text]) for text in texts(40)]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_token_order_matters_in_both_directions() -> None:
    encode = TextEncoder(encoder("cls")).encode
    assert np.abs(encode([[1, 2, 3]]) - encode([[1, 3, 2]])).max() > 1e-3


@pytest.mark.parametrize("text", [[], [1] * 65, [1, 100], [-1]])
def test_a_text_that_does_not_fit_is_refused_by_its_number(text: list[int]) -> None:
    with pytest.raises(RequestError, match="text 1 has"):
        TextEncoder(encoder()).encode([[1, 2], text])


def test_no_texts_give_no_vectors() -> None:
    assert TextEncoder(encoder()).encode([]).shape == (0, 64)
