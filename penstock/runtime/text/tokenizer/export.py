"""A tokenizer written down again: as the files of a Hugging Face directory, or as the metadata of a GGUF file."""

import json
from typing import Any

import numpy as np
import tokenizers

from penstock.errors import ConfigError
from penstock.runtime.text.tokenizer.splits import SPLITS
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tokenizer.vocabulary import ROLE_KEYS, TokenType

UNMERGED = -1e6
"""Score of a token that no merge makes."""


def hugging_face_files(tokenizer: Tokenizer, template: str | None) -> dict[str, str]:
    """Names and contents of the files beside a model."""
    roles = dict(tokenizer.special_tokens)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(tokenizer.encode("", special=True)),
        **roles,
    }
    generation: dict[str, object] = {"eos_token_id": sorted(tokenizer.eos_ids)}
    if tokenizer.bos_id is not None:
        generation |= {"bos_token_id": tokenizer.bos_id}
    files = {
        "tokenizer.json": tokenizer.backend.to_str(),
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False),
        "generation_config.json": json.dumps(generation, indent=1),
    }
    return files if template is None else files | {"chat_template.jinja": template}


def gguf_metadata(tokenizer: Tokenizer, num_tokens: int, template: str | None) -> dict[str, object]:
    """`num_tokens` is the model's: it may score more than the tokenizer names."""
    backend = tokenizer.backend
    state: dict[str, Any] = json.loads(backend.to_str())
    model = state["model"]
    if model.get("type") != "BPE":
        raise ConfigError(
            f"tokenizers of type {model.get('type')} are not written as GGUF; choose a safetensors format"
        )
    tokens = [tokenizer.token(number) or f"[PAD{number}]" for number in range(num_tokens)]
    found: dict[str, object] = {"tokenizer.ggml.tokens": tokens}
    if model.get("byte_fallback"):
        found |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
        found["tokenizer.ggml.scores"] = _scores(model["merges"], tokens)
        found["tokenizer.ggml.add_space_prefix"] = "Prepend" in json.dumps(state.get("normalizer"))
    else:
        found |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": _split_name(backend)}
        found["tokenizer.ggml.merges"] = [" ".join(_pair(merge)) for merge in model["merges"]]
    found["tokenizer.ggml.token_type"] = _types(tokenizer, tokens)
    for role, key in ROLE_KEYS.items():
        token_id = tokenizer.token_id(tokenizer.special_tokens.get(role, ""))
        if token_id is not None:
            found[f"tokenizer.ggml.{key}"] = token_id
    opening = tokenizer.encode("", special=True)
    found["tokenizer.ggml.add_bos_token"] = bool(opening) and opening[0] == tokenizer.bos_id
    return found if template is None else found | {"tokenizer.chat_template": template}


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _scores(merges: list[Any], tokens: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Earlier merges make better tokens."""
    made: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        made.setdefault("".join(_pair(merge)), -float(rank))
    return np.array([made.get(token, UNMERGED) for token in tokens], np.float32)


def _types(tokenizer: Tokenizer, tokens: list[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
    types = [TokenType.NORMAL] * len(tokens)
    unknown = tokenizer.special_tokens.get("unk_token")
    for number, token in enumerate(tokens):
        if tokenizer.token(number) is None:
            types[number] = TokenType.UNUSED
        elif token == unknown:
            types[number] = TokenType.UNKNOWN
        elif number in tokenizer.special_ids:
            types[number] = TokenType.CONTROL
        elif number in tokenizer.added_ids:
            types[number] = TokenType.USER_DEFINED
        elif len(token) == 6 and token.startswith("<0x"):
            types[number] = TokenType.BYTE
    return np.array(types, np.int32)


def _split_name(backend: tokenizers.Tokenizer) -> str:
    """The name under which GGUF knows this way of cutting words, found by what it does to words."""
    wanted = _cuts(backend.pre_tokenizer, backend.normalizer)
    for name, split in SPLITS.items():
        if name != "default" and _cuts(split.pre_tokenizer(), split.normalizer()) == wanted:
            return name
    raise ConfigError("this tokenizer cuts words in a way that GGUF has no name for here; choose a safetensors format")


PROBE = (
    "It's 12345 o'clock, WE'RE late!!  Can't\tstop\n\n\n  now...  naïve cafe\u0301 日本語テキスト 한국어 x=3.14159; "
    "def f(a_b, cD):\r\n\treturn a_b**2 // 7  # комментарий ١٢٣ 🙂🙂  end   \n"
)


def _cuts(pre: Any, normalizer: Any) -> list[str]:
    text = PROBE if normalizer is None else normalizer.normalize_str(PROBE)
    return [] if pre is None else [piece for piece, _ in pre.pre_tokenize_str(text)]
