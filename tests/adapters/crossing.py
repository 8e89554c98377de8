"""Servers with adapters, asked in every dialect: what `test_served.py` holds against adapters that are served alone."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import httpx
import torch
from safetensors.torch import save_file

from tests.adapters.making import write_adapter
from tests.machine import PATIENCE_S
from tests.offline import HEADS, HIDDEN, KV_HEADS, WIDTH, write_chat_model

BASE = "tiny"
NAMES = (BASE, "a0", "a1", "dora")
WORDS = "the cat and the dog and the cat and the dog and the "
"""A prompt in which drafters find something to guess."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["yes", "no", "perhaps"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def write_models(folder: Path) -> Path:
    """A model, one that drafts for it, drafting heads, a watermark's key, and three adapters, one a DoRA."""
    folder.mkdir()
    write_chat_model(folder / f"{BASE}.gguf")
    write_chat_model(folder / "draft.gguf", seed=12)
    _write_eagle(folder / "eagle", len(gguf.GGUFReader(folder / "draft.gguf").fields["tokenizer.ggml.tokens"].data))
    (folder / "key").write_text("00112233445566778899aabbccddeeff" * 2 + "\n")
    for number in range(2):
        write_adapter(folder / "adapters" / f"a{number}", number, rank=4 * (number + 1))
    write_adapter(folder / "adapters" / "dora", 7, use_dora=True)
    return folder


def _write_eagle(folder: Path, vocabulary: int) -> None:
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    few = HIDDEN * KV_HEADS // HEADS
    shapes = {
        "embed_tokens.weight": (vocabulary, HIDDEN),
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        f"{attention}q_proj.weight": (HIDDEN, HIDDEN),
        f"{attention}k_proj.weight": (few, HIDDEN),
        f"{attention}v_proj.weight": (few, HIDDEN),
        f"{attention}o_proj.weight": (HIDDEN, HIDDEN),
        f"{mlp}gate_proj.weight": (WIDTH, HIDDEN),
        f"{mlp}up_proj.weight": (WIDTH, HIDDEN),
        f"{mlp}down_proj.weight": (HIDDEN, WIDTH),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,),
    }
    generator = torch.Generator().manual_seed(3)
    folder.mkdir()
    save_file(
        {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    config = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": WIDTH}))


class Asked(NamedTuple):
    """A way to ask, what of a whole answer is its text, and what of a streamed piece."""

    path: str
    body: Mapping[str, Any]
    whole: Callable[[Any], Any]
    piece: Callable[[Any], str] | None = None


def _completed(**options: Any) -> Asked:
    body = {"prompt": WORDS, "max_tokens": 16, "temperature": 0, **options}
    return Asked("/v1/completions", body, lambda got: [one["text"] for one in got["choices"]])


def _streamed_completion(piece: Any) -> str:
    return "".join(one["text"] for one in piece["choices"])


def _streamed_chat(piece: Any) -> str:
    return "".join(one["delta"].get("content") or "" for one in piece["choices"])


def _chatted(**options: Any) -> Asked:
    body = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 12, "temperature": 0, **options}
    return Asked("/v1/chat/completions", body, lambda got: got["choices"][0]["message"]["content"], _streamed_chat)


MESSAGES = [{"role": "user", "content": WORDS}]
ASKED = {
    "completion": _completed()._replace(whole=lambda got: got["choices"][0]["text"], piece=_streamed_completion),
    "regex": _completed(structured_outputs={"regex": "[0-9a-f ]{8,16}"}),
    "three": _completed(n=3, temperature=0.9, seed=5),
    "best of three": _completed(best_of=3, temperature=0.9, seed=6),
    "beams": _completed(use_beam_search=True, beam_width=3, n=3, max_tokens=6),
    "chat": _chatted(),
    "schema": _chatted(
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    ),
    "messages": Asked(
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 12, "temperature": 0},
        lambda got: "".join(one["text"] for one in got["content"]),
        lambda piece: piece.get("delta", {}).get("text") or "",
    ),
    "responses": Asked(
        "/v1/responses",
        {"input": WORDS, "max_output_tokens": 16, "temperature": 0},
        lambda got: "".join(part["text"] for one in got["output"] for part in one.get("content", ())),
        lambda piece: piece["delta"] if piece.get("type") == "response.output_text.delta" else "",
    ),
    "ollama": Asked(
        "/api/chat",
        {"messages": MESSAGES, "stream": False, "options": {"num_predict": 12, "temperature": 0}},
        lambda got: got["message"]["content"],
        lambda piece: piece["message"]["content"],
    ),
}


def ask(url: str, name: str, asked: Asked, *, streams: bool = False) -> Any:
    """What a model answers: texts of an answer that comes whole, or the text of one that is streamed."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False) as http:
        if not streams:
            answer = http.post(asked.path, json={"model": name, **asked.body})
            assert answer.status_code == 200, (name, asked.path, answer.text)
            return asked.whole(answer.json())
        return "".join(pieces(http, name, asked))


def pieces(http: httpx.Client, name: str, asked: Asked) -> Iterator[str]:
    """Texts of a streamed answer, as they come."""
    assert asked.piece is not None
    with http.stream("POST", asked.path, json={"model": name, **asked.body, "stream": True}) as answer:
        assert answer.status_code == 200, (name, asked.path, answer.read())
        for line in answer.iter_lines():
            text = line.removeprefix("data: ")
            if text.startswith("{"):
                value = json.loads(text)
                assert "error" not in value, value
                yield asked.piece(value)


def answers(url: str, names: Sequence[str], *, num_at_once: int = 1, both: bool = False) -> dict[str, dict[str, Any]]:
    """Every way to ask, of every name; `both` streams answers too, and has them be the same."""

    def one(job: tuple[str, str, bool]) -> tuple[str, str, Any]:
        kind, name, streams = job
        return name, kind, ask(url, name, ASKED[kind], streams=streams)

    jobs = [(kind, name, False) for kind in ASKED for name in names]
    jobs += [(kind, name, True) for kind in ASKED for name in names if both and ASKED[kind].piece]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    with ThreadPoolExecutor(num_at_once) as pool:
        for name, kind, got in pool.map(one, jobs):
            assert found[name].setdefault(kind, got) == got, f"{name}, {kind}: streamed and whole differ"
    return found
