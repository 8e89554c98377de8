"""Tiny models for what stands on top of an engine: one of numbers alone, one that chats, in a file."""

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from penstock import LLM
from penstock.assembly.engine import LoadedModel
from penstock.config import configure
from penstock.runtime.execution.device import open_device
from tests.runtime.driving import tiny_model
from tests.text.sources import byte_level_metadata
from tests.text.templates import CHATML

HIDDEN, WIDTH, HEADS, KV_HEADS, HEAD, LAYERS = 64, 96, 4, 2, 16, 2


def tiny_llm(vocab_size: int = 96, **settings: Any) -> LLM:
    """Token ids in, token ids out."""
    loaded = LoadedModel(tiny_model(vocab_size), open_device("cpu"), None)
    return LLM.over(loaded, configure(max_context=160, **({"max_sequences": 16} | settings)))


def prompts(count: int, vocab_size: int = 96) -> list[tuple[int, ...]]:
    source = random.Random(5)
    return [tuple(source.randrange(vocab_size) for _ in range(source.randrange(1, 40))) for _ in range(count)]


def write_chat_model(path: Path, seed: int = 11) -> Path:
    """A llama of random numbers over a vocabulary of bytes, with a chat template."""
    words = byte_level_metadata()
    tokens: Any = words["tokenizer.ggml.tokens"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(words["tokenizer.ggml.token_type"])
    writer.add_token_merges(words["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    numbers = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)).items():
        values = np.ones(shape) if name.endswith("norm.weight") else numbers.normal(0, shape[-1] ** -0.5, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (vocabulary, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (WIDTH, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (WIDTH, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, WIDTH),
        }
    return shapes
