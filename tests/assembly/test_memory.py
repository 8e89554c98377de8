"""Memory that forgets beside everything else: what goes together gives the same text, the rest is refused by one sentence that
names what to leave out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM
from penstock.assembly.machines import make_engine
from penstock.assembly.peers import PeerSettings
from penstock.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from penstock.errors import ConfigError
from penstock.runtime.core.request import Grammar, Request, SamplingParams
from tests.adapters.making import write_adapter
from tests.offline import write_chat_model
from tests.server.serving import serving

FORGETS = "streaming:4+60"
PROMPT = "hello there, hello there, and hello again; " * 3
GREEDY = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
SAME: dict[str, dict[str, Any]] = {
    "drafts": {"speculate": "ngram"},
    "drafts of a length": {"speculate": "auto", "draft_tokens": 3},
    "no prefixes": {"prefix_caching": False},
    "chunks": {"max_batch_tokens": 16, "max_sequences": 4},
    "8-bit keys of the layers that remember": {"kv": "int8"},
    "adapters that nobody asked for": {"adapters": "an adapter"},
}
"""Settings that change no text."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tensor": ({"tensor": 2}, "leave out --tensor and --pipeline"),
    "pipeline": ({"pipeline": 2}, "leave out --tensor and --pipeline"),
    "kv-host": (
        {"kv_host": "8MiB"},
        f"--kv-host and --kv-disk .* --long-context {FORGETS.replace('+', '.')} .* leave them",
    ),
    "kv-disk": ({"kv_disk": "a folder"}, "--kv-host and --kv-disk .* leave them"),
    "invariant": ({"invariant": True}, "leave it out"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), 1)


@pytest.fixture(scope="module")
def forgetful(model: Path) -> Iterator[LLM]:
    with opened(model) as llm:
        yield llm


def opened(model: Path, **settings: Any) -> LLM:
    return LLM(str(model), max_context=400, **({"long_context": FORGETS} | settings))


def said(llm: LLM, params: SamplingParams = GREEDY, adapter: str = "") -> list[tuple[int, ...]]:
    (completion,) = llm.generate([PROMPT], params, adapter=adapter)
    return [tuple(choice.token_ids) for choice in completion.choices]


def test_it_forgets(model: Path, forgetful: LLM) -> None:
    with opened(model, long_context="full", dtype="float32") as llm:
        assert said(llm) != said(forgetful)


@pytest.mark.parametrize("name", SAME)
def test_what_goes_together_changes_no_text(name: str, model: Path, adapter: Path, forgetful: LLM) -> None:
    settings = SAME[name]
    settings = settings | ({"adapters": {"one": str(adapter)}} if "adapters" in settings else {})
    with opened(model, **settings) as llm:
        assert said(llm) == said(forgetful)


def test_an_adapter_lies_over_what_forgets(model: Path, adapter: Path, forgetful: LLM) -> None:
    with opened(model, adapters={"one": str(adapter)}) as llm:
        adapted = said(llm, adapter="one")
    assert adapted != said(forgetful)
    with opened(model, adapters={"one": str(adapter)}, speculate="ngram") as llm:
        assert said(llm, adapter="one") == adapted


def test_a_grammar_holds(forgetful: LLM) -> None:
    (tokens,) = said(forgetful, replace(GREEDY, ignore_eos=False, grammar=Grammar("regex", "[ab]{40}")))
    assert set(forgetful.files.tokenizer.decode(tokens)) <= {"a", "b"}


def test_several_choices_and_matrices_of_8_bits(model: Path, forgetful: LLM) -> None:
    drawn = said(forgetful, replace(GREEDY, temperature=0.9, seed=4, n=3))
    assert len(set(drawn)) == 3
    assert drawn == said(forgetful, replace(GREEDY, temperature=0.9, seed=4, n=3))
    with opened(model, weights="fp8") as llm:
        assert len(said(llm)[0]) == GREEDY.max_tokens


def test_an_answer_goes_on_elsewhere(forgetful: LLM) -> None:
    """As a router has it continued by another replica."""
    (whole,) = said(forgetful)
    prompt = tuple(forgetful.files.tokenizer.encode(PROMPT, special=True))
    engine = forgetful.engine
    engine.submit(Request(request_id=10**6, prompt=prompt, params=GREEDY, resumed=(whole[:30],)))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for delta in engine.step() for token in delta.token_ids]
    assert tuple(tokens) == whole[30:]


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    settings, fault = REFUSED[name]
    settings = settings | ({"kv_disk": str(tmp_path)} if "kv_disk" in settings else {})
    with pytest.raises(ConfigError, match=fault):
        opened(model, **settings)


def test_roles_are_refused() -> None:
    cache, speculation = CacheConfig(long_context=FORGETS), SpeculationConfig(speculate="off")
    config = EngineConfig(ModelConfig("default"), cache, speculation=speculation)
    with pytest.raises(ConfigError, match=r"--role .* --long-context streaming:4.60 .* leave it out"):
        make_engine(config, lambda _: None, peers=PeerSettings("127.0.0.1", b"key"))


def test_every_answer_says_that_something_is_forgotten(model: Path, forgetful: LLM) -> None:
    with serving(
        "--long-context", FORGETS, "--max-context", "400", "--speculate", "ngram", model=str(model), is_real=True
    ) as server:
        body = {"model": "default", "prompt": PROMPT, "max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
        answer = server.post("/v1/completions", body).json()
        short, messages = {"model": "default", "stream": False}, [{"role": "user", "content": "hi"}]
        responses = server.post("/v1/responses", {"model": "default", "input": "hi", "max_output_tokens": 16}).json()
        anthropic = server.post("/v1/messages", {**short, "messages": messages, "max_tokens": 4}).json()
        ollama = server.post("/api/generate", {**short, "prompt": "hi", "options": {"num_predict": 4}}).json()
    assert responses["usage"]["input_tokens_details"]["long_context"] == FORGETS
    assert anthropic["usage"]["long_context"] == FORGETS
    assert ollama["long_context"] == FORGETS
    assert answer["usage"]["prompt_tokens_details"]["long_context"] == FORGETS
    (completion,) = forgetful.generate([PROMPT], replace(GREEDY, max_tokens=20))
    assert answer["choices"][0]["text"] == completion.choices[0].text


def test_latents_in_8_bits_are_refused_before_anything_is_loaded() -> None:
    """They stay in 16 bits, and a cache sized for 8 would take twice the memory that there is."""
    config = EngineConfig(model=ModelConfig("dummy:deepseek-v3"), cache=CacheConfig(kv="fp8"))
    with pytest.raises(ConfigError, match="are kept in 16 bits: leave it out"):
        make_engine(config, lambda *_: None)
