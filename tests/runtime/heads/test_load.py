"""Published layouts are read; whatever cannot guess for the model is refused with the reason and the way out."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import ConfigError, ModelFileError
from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.heads.load import make_heads, open_heads
from penstock.runtime.execution.heads.states import StateStore
from penstock.runtime.execution.heads.target import FloatTarget
from tests.runtime.driving import BLOCK_SIZE, tiny_model

VOCABULARY, SIZE, WIDTH = 96, 32, 48
PLENTY = 1 << 40
CONFIG = {"hidden_size": SIZE, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": WIDTH}
MODEL = tiny_model(VOCABULARY)
SPEC = MODEL.spec


def eagle_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "embed_tokens.weight": (VOCABULARY, SIZE),
        "fc.weight": (SIZE, 2 * SIZE),
        f"{attention}q_proj.weight": (SIZE, SIZE),
        f"{attention}k_proj.weight": (SIZE // 2, SIZE),
        f"{attention}v_proj.weight": (SIZE // 2, SIZE),
        f"{attention}o_proj.weight": (SIZE, SIZE),
        f"{mlp}gate_proj.weight": (WIDTH, SIZE),
        f"{mlp}up_proj.weight": (WIDTH, SIZE),
        f"{mlp}down_proj.weight": (SIZE, WIDTH),
        "layers.0.post_attention_layernorm.weight": (SIZE,),
    }
    return {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}


def medusa_tensors(num_heads: int = 3, *, outputs: bool = True) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {}
    for head in range(num_heads):
        tensors[f"{head}.0.linear.weight"] = torch.randn(SIZE, SIZE) * 0.2
        tensors[f"{head}.0.linear.bias"] = torch.randn(SIZE) * 0.2
        if outputs:
            tensors[f"{head}.1.weight"] = torch.randn(VOCABULARY, SIZE)
    return tensors


def folder(path: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, object] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    if tensors:
        save_file(dict(tensors), path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def guesses(kind: str, path: Path) -> list[int]:
    runner = ModelRunner(MODEL, RunnerShape(4, BLOCK_SIZE, 1, 4 * BLOCK_SIZE))
    store = runner.states = StateStore(SIZE, torch.device("cpu"))
    heads = make_heads(kind, open_heads(kind, path, SPEC, "mine", PLENTY), SPEC, FloatTarget(MODEL), store)
    arrival = Arrival(SamplingParams(temperature=0.0), 0, 4, (), "")
    runner.launch(Batch(1, (Chunk(0, 0, 4, (1, 2, 3, 4), (0, 1), True, arrival),))).result()
    found = heads.guess((0, 0), 0, [1, 2, 3, 4, 5], 3)
    heads.forget((0, 0))
    return found


def test_published_layouts_are_served(tmp_path: Path) -> None:
    for name, kind, tensors, config in (
        ("eagle", "eagle", eagle_tensors(), CONFIG),
        ("medusa", "medusa", medusa_tensors(), {"medusa_num_heads": 3}),
        ("bare", "medusa", medusa_tensors(), None),
        ("tied", "medusa", medusa_tensors(outputs=False), None),
        ("named", "medusa", {f"medusa_heads.{k}": v for k, v in medusa_tensors().items()}, None),
    ):
        found = guesses(kind, folder(tmp_path / name, tensors, config))
        assert len(found) == 3
        assert all(0 <= token < VOCABULARY for token in found)


def test_a_draft_vocabulary_is_all_that_is_guessed_from(tmp_path: Path) -> None:
    allowed = torch.tensor([7, 30, 31, 90])
    tensors = eagle_tensors() | {"d2t": allowed - torch.arange(4)}
    assert set(guesses("eagle", folder(tmp_path / "e", tensors, CONFIG))) <= {7, 30, 31, 90}


def refusal(kind: str, path: Path, fingerprint: str = "mine", free_bytes: int = PLENTY) -> str:
    def serve() -> None:
        files = open_heads(kind, path, SPEC, fingerprint, free_bytes)
        make_heads(kind, files, SPEC, FloatTarget(MODEL), StateStore(SIZE, torch.device("cpu")))

    with pytest.raises((ConfigError, ModelFileError)) as refused:
        serve()
    return str(refused.value)


def test_what_cannot_guess_is_refused_with_the_reason(tmp_path: Path) -> None:
    eagle = eagle_tensors()
    assert "names no folder" in refusal("eagle", tmp_path / "absent")
    pickled = folder(tmp_path / "pickled", {})
    (pickled / "medusa_lm_head.pt").write_bytes(b"\x80\x02")
    assert "pickled" in refusal("medusa", pickled)
    assert "save_file" in refusal("medusa", pickled)
    assert "no weights" in refusal("medusa", folder(tmp_path / "empty", {}))
    whole = folder(tmp_path / "whole", eagle, CONFIG | {"target_fingerprint": "another", "target_name": "Other-1B"})
    assert "trained for Other-1B" in refusal("eagle", whole)
    assert "GiB are free" in refusal("eagle", whole, free_bytes=100)
    vocabulary = folder(tmp_path / "vocabulary", eagle, CONFIG | {"vocab_size": 32_000})
    assert "vocabulary of 32000" in refusal("eagle", vocabulary)
    kind = folder(tmp_path / "kind", eagle, CONFIG | {"draft_kind": "eagle"})
    assert "--speculate eagle:" in refusal("medusa", kind)
    assert "states of 64 numbers" in refusal("eagle", folder(tmp_path / "size", eagle, CONFIG | {"hidden_size": 64}))
    assert "does not tell" in refusal("eagle", folder(tmp_path / "untold", eagle, {}))
    short = dict(eagle, **{"fc.weight": torch.zeros(SIZE, SIZE)})
    assert "fc.weight" in refusal("eagle", folder(tmp_path / "short", short, CONFIG))
    assert "head of another kind" in refusal("eagle", folder(tmp_path / "other", medusa_tensors(), CONFIG))
    assert "no Medusa heads" in refusal("medusa", folder(tmp_path / "none", eagle))
    third = {"midlayer.self_attn.q_proj.weight": torch.zeros(1)} | eagle
    assert "EAGLE-3" in refusal("eagle", folder(tmp_path / "third", third, CONFIG))
    far = eagle | {"d2t": torch.tensor([0, VOCABULARY])}
    assert "tokens that the model does not have" in refusal("eagle", folder(tmp_path / "far", far, CONFIG))
    partial = medusa_tensors()
    del partial["2.1.weight"]
    assert "incomplete" in refusal("medusa", folder(tmp_path / "partial", partial))
    broken = folder(tmp_path / "broken", eagle)
    (broken / "config.json").write_text("{")
    assert "cannot be read" in refusal("eagle", broken)
