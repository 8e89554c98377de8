"""Words of models that are not loaded are bounded: the last few are kept, and others are read again."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.config import EngineConfig
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
from penstock.service.server.pool.loads import KeptWords
from penstock.service.server.pool.resident import Resident
from penstock.service.server.served import ServedModel
from penstock.service.server.text import ModelCard, Text
from tests.server.serving import chat_text, serving, user

TOKENIZER = byte_tokenizer()


def make(name: str) -> ServedModel:
    model = ServedModel(EngineClient([], EngineConfig()), num_tenants=0, resident=Resident(name, 1))
    model.card = ModelCard(family="looked at")
    return model


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 3))
def test_the_words_of_the_models_unloaded_last_are_kept(moves: list[int], most: int) -> None:
    models = [make(f"m{number}") for number in range(6)]
    kept, loaded, left = KeptWords(most), set[int](), list[int]()
    seen: set[int] = set()
    for number in moves:
        model = models[number]
        left = [one for one in left if one != number]
        if number in loaded:
            loaded.remove(number)
            left = [*left, number][-most:] if most else []
            kept.keep(model)
        else:
            loaded.add(number)
            kept.take(model)
            model.text = Text(TOKENIZER, card=ModelCard(family="read"))
        seen.add(number)
        assert {one for one in range(6) if models[one].is_open} == loaded.union(left)
        assert {one for one in range(6) if models[one].card.family == "read"} == seen


def test_a_model_whose_words_were_forgotten_answers_as_before() -> None:
    names = [f"m{number}" for number in range(6)]
    flags = [word for name in names for word in ("--model", f"{name}=oracle:")]
    with serving(*flags, "--keep-alive", "0", model="default", is_real=True) as server:
        for name in [*names, *names]:
            body = {"model": name, "messages": user("hello"), "max_tokens": 8, "temperature": 0}
            answer = server.post("/v1/chat/completions", body)
            assert answer.json()["choices"][0]["message"]["content"] == chat_text("hello", 8)
            assert server.post("/api/show", {"model": name}).status_code == 200
