"""A model whose matrices stay packed under torch's layers is the model of the same numbers in floats."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from penstock.runtime.execution.load.packing import can_pack
from penstock.runtime.execution.load.parameters import load_model
from penstock.runtime.files import ModelFiles, open_files
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.linear import Linear
from penstock.runtime.layers.quantized.packed import PackedEmbedding, PackedLinear, PackedMatrix
from penstock.runtime.models.spec import GatedMLP, Layer, MoE
from tests import real
from tests.runtime.driving import Driver, Text, all_logits, prompts, tiny_model, tiny_spec
from tests.runtime.quantized_files import KINDS, VOCABULARY, Kind, write_pair

CPU = torch.device("cpu")


def loaded(files: ModelFiles, packs: bool, dtype: torch.dtype = torch.float32) -> Decoder:
    model = load_model(files.spec, files.model.recipes, files.checkpoint, CPU, dtype, packs=packs)
    assert isinstance(model, Decoder)
    return model


def tokens(model: Decoder) -> list[list[int]]:
    return Driver(model).finish([Text(prompt) for prompt in prompts(5, 40, vocab_size=VOCABULARY)], 12)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_packed_model_says_what_floats_say(kind: Kind, tmp_path: Path) -> None:
    quantized, floats = (open_files(str(path)) for path in write_pair(kind, tmp_path))
    packed, plain = loaded(quantized, packs=True), loaded(floats, packs=False)
    (text,) = prompts(60, vocab_size=VOCABULARY)
    mine, theirs = all_logits(packed, text), all_logits(plain, text)
    assert (mine - theirs).norm() < (1e-5 if kind.symmetric else 2e-3) * theirs.norm()
    first, second = theirs.topk(2).values.t()
    is_clear = first - second > 2 * (mine - theirs).abs().amax(-1)
    assert is_clear.float().mean() > 0.9
    assert torch.equal(mine.argmax(-1)[is_clear], theirs.argmax(-1)[is_clear])
    if kind.symmetric:
        assert tokens(packed) == tokens(plain)
    for layer in packed.layers:
        assert all(isinstance(each, PackedLinear) for each in (layer.attention.qkv, layer.attention.out))
        assert all(isinstance(each, PackedLinear) for each in (layer.mlp.gate_up, layer.mlp.down))
    held = sum(parameter.nbytes for parameter in packed.layers.parameters())
    assert held < 0.5 * kind.bits / 8 * sum(parameter.nbytes for parameter in plain.layers.parameters())


def write_gguf(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A llama whose every matrix, the embedding too, is of one quantized type."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 256),
        (writer.add_embedding_length, 64),
        (writer.add_block_count, 2),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_vocab_size, VOCABULARY),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    source = np.random.default_rng(1)
    shapes = {"token_embd.weight": (VOCABULARY, 64)}
    for at in ("blk.0.", "blk.1."):
        shapes |= {
            f"{at}attn_{part}.weight": (64 if part in ("q", "output") else 32, 64) for part in ("q", "k", "v", "output")
        }
        shapes |= {f"{at}ffn_gate.weight": (96, 64), f"{at}ffn_up.weight": (96, 64), f"{at}ffn_down.weight": (64, 96)}
        writer.add_tensor(f"{at}attn_q.bias", source.normal(0, 1, 64).astype(np.float32))
        writer.add_tensor(f"{at}attn_k.bias", source.normal(0, 1, 32).astype(np.float32))
        writer.add_tensor(f"{at}attn_v.bias", source.normal(0, 1, 32).astype(np.float32))
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}{norm}.weight", np.ones(64, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(64, dtype=np.float32))
    for name, shape in shapes.items():
        numbers = source.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_a_gguf_file_stays_packed_down_to_its_embedding(kind: str, tmp_path: Path) -> None:
    files = open_files(str(write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind])))
    packed, plain = loaded(files, packs=True), loaded(files, packs=False)
    assert isinstance(packed.embedding, PackedEmbedding)
    assert packed.output is None
    assert not any(isinstance(module, Linear) for module in packed.modules())
    (text,) = prompts(60, vocab_size=VOCABULARY)
    mine, theirs = (all_logits(model, text) for model in (packed, plain))
    assert (mine - theirs).norm() < 1e-5 * theirs.norm()
    assert tokens(packed) == tokens(plain)
    assert packed.cache_dtype == torch.float32
    assert loaded(files, packs=True, dtype=torch.bfloat16).cache_dtype == torch.bfloat16


def test_a_real_model_takes_no_more_memory_than_its_file() -> None:
    path = real.model_path(real.DEFAULT)
    model = loaded(open_files(str(path)), packs=True, dtype=torch.bfloat16)
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert held < 110e6
    assert all(isinstance(layer.mlp.down, PackedMatrix) for layer in model.layers)


def test_only_matrices_of_decoders_are_packed() -> None:
    layer = Layer(tiny_spec().layers[0].attention, MoE(4, 2, GatedMLP(32, "silu"), True))
    model = tiny_model(layers=(layer,))
    able = {name for name, _ in model.named_parameters() if can_pack(model, name)}
    assert able == {
        "embedding.weight",
        "output.weight",
        "layers.0.attention.qkv.weight",
        "layers.0.attention.out.weight",
        "layers.0.mlp.router.weight",
    }
