"""A tokenizer out of a GGUF file's metadata: vocabulary, merges and special tokens under their `tokenizer.ggml` keys.

Owns the checking of those values, which come from a file nobody vouches for: every list is measured against the
vocabulary and every merge against its parts before the tokenizer library sees them. Knows nothing of files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from penstock.errors import ModelFileError
from penstock.runtime.text.tokenizer.pieces import SPACE_MARK
from penstock.runtime.text.tokenizer.splits import split_named

MAX_TOKENS = 1 << 22
MAX_MERGED_CHARACTERS = 1024
"""Longest SentencePiece token whose merges are rebuilt; trained vocabularies stay far below."""


class TokenType(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)

# Control tokens that end an answer in every vocabulary that has them. Files often declare only one of several.
_END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
# In harmony vocabularies <|end|> closes one message of several; these two end the answer.
_HARMONY_ENDS = ("<|return|>", "<|call|>")

ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Which tokens mean something beyond their text."""

    bos_id: int | None
    eos_ids: frozenset[int]
    """Tokens that end an answer: end of text, end of turn."""
    names: Mapping[str, str]
    """Texts by role (`bos_token`, `eos_token`, ...), as chat templates read them."""


class Vocabulary(NamedTuple):
    """The checked lists of a file: token texts by id, their types, and their scores where there are any."""

    tokens: list[str]
    types: list[int]
    scores: list[float] | None

    def ids(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    def of_type(self, *types: TokenType) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]


def tokenizer_from_metadata(metadata: Mapping[str, object]) -> tuple[Tokenizer, SpecialTokens]:
    """The tokenizer a GGUF file describes, and its special tokens."""
    reader = _Reader(metadata)
    builders = {"gpt2": _byte_level, "llama": _sentence_piece, "bert": _word_piece}
    model = reader.text("model")
    if model not in builders:
        raise ModelFileError(
            f"tokenizer.ggml.model is {model!r:.80}; known: {', '.join(sorted(builders))}. "
            "Use the model's Hugging Face directory with its tokenizer.json"
        )
    vocabulary = reader.vocabulary()
    if model == "llama":
        vocabulary = _with_marked_spaces(vocabulary)
    roles = reader.roles(vocabulary, model)
    tokenizer = builders[model](reader, vocabulary, roles)
    _add_tokens(tokenizer, vocabulary)
    names = {name: vocabulary.tokens[token_id] for name, token_id in roles.items()}
    special = SpecialTokens(roles.get("bos_token"), reader.end_ids(vocabulary, roles), names)
    return tokenizer, special


class _Reader:
    """Typed access to the metadata; every fault is a `ModelFileError` that names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def has(self, key: str) -> bool:
        return f"tokenizer.ggml.{key}" in self._metadata

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            raise ModelFileError(f"tokenizer.ggml.{key} is {_shown(value)}; it must be a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise ModelFileError(f"tokenizer.ggml.{key} is {_shown(value)}; it must be true or false")
        return value

    def token_id(self, key: str, size: int) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
            raise ModelFileError(f"tokenizer.ggml.{key} is {_shown(value)}; it must be a token id below {size}")
        return value

    def texts(self, key: str) -> list[str]:
        values = self._metadata.get(f"tokenizer.ggml.{key}")
        texts = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else None
        if texts is None or not {str}.issuperset(map(type, texts)):
            raise ModelFileError(f"tokenizer.ggml.{key} is missing or not a list of texts")
        return texts

    def numbers(self, key: str, size: int) -> list[Any] | None:
        values = self._metadata.get(f"tokenizer.ggml.{key}")
        if values is None:
            return None
        numbers = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(numbers, list) or len(numbers) != size:
            raise ModelFileError(f"tokenizer.ggml.{key} must be a list of {size} numbers, one a token")
        if not {int, float}.issuperset(map(type, numbers)) or not all(map(math.isfinite, numbers)):
            raise ModelFileError(f"tokenizer.ggml.{key} has an entry that is not a finite number")
        return numbers

    def vocabulary(self) -> Vocabulary:
        tokens = self.texts("tokens")
        size = len(tokens)
        if not 0 < size <= MAX_TOKENS:
            raise ModelFileError(f"tokenizer.ggml.tokens has {size} entries; expected 1 to {MAX_TOKENS}")
        tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens)]
        if len(set(tokens)) != size:
            raise ModelFileError("tokenizer.ggml.tokens has the same text twice; every token needs its own")
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError as error:
            raise ModelFileError(f"tokenizer.ggml.tokens has a text that is not Unicode: {error.reason}") from error
        types = self.numbers("token_type", size) or [TokenType.NORMAL] * size
        if not set(types) <= set(TokenType):
            raise ModelFileError("tokenizer.ggml.token_type has a value outside 0 to 6")
        return Vocabulary(tokens, types, self.numbers("scores", size))

    def roles(self, vocabulary: Vocabulary, model: str) -> dict[str, int]:
        """Token ids by role name; the ids that `model` implies stand in where the file is silent."""
        size = len(vocabulary.tokens)
        implied = _IMPLIED_ROLES.get(model, {})
        found = {}
        for name, key in ROLE_KEYS.items():
            token_id = self.token_id(key, size)
            if token_id is None and implied.get(name, size) < size:
                token_id = implied[name]
            if token_id is not None:
                found[name] = token_id
        return found

    def end_ids(self, vocabulary: Vocabulary, roles: Mapping[str, int]) -> frozenset[int]:
        size = len(vocabulary.tokens)
        declared = {self.token_id(key, size) for key in _END_KEYS} | {roles.get("eos_token")}
        control = {vocabulary.tokens[token_id]: token_id for token_id in vocabulary.of_type(TokenType.CONTROL)}
        known = {control[token] for token in _END_TOKENS if token in control}
        if all(token in control for token in _HARMONY_ENDS):
            known.discard(control.get("<|end|>", -1))
            known.update(control[token] for token in _HARMONY_ENDS)
        return frozenset(token_id for token_id in declared | known if token_id is not None)


_IMPLIED_ROLES: dict[str, dict[str, int]] = {
    "llama": {"unk_token": 0, "bos_token": 1, "eos_token": 2},
    "bert": {"pad_token": 0, "unk_token": 100, "cls_token": 101, "sep_token": 102, "mask_token": 103},
}


def _byte_level(reader: _Reader, vocabulary: Vocabulary, roles: Mapping[str, int]) -> Tokenizer:
    split = split_named(reader.text("pre", "default"))
    ids = vocabulary.ids()
    merges = _checked_merges(reader.texts("merges"), ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=split.ignore_merges))
    if (normalizer := split.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    _add_ends(tokenizer, reader, roles, add_bos=split.add_bos)
    return tokenizer


def _sentence_piece(reader: _Reader, vocabulary: Vocabulary, roles: Mapping[str, int]) -> Tokenizer:
    ids = vocabulary.ids()
    unknown = roles.get("unk_token")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE_MARK)
    parts: list[Any] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if reader.flag("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces])
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(parts)
    _add_ends(tokenizer, reader, roles, add_bos=True)
    return tokenizer


def _with_marked_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """Runs of spaces spelled with the mark, as SentencePiece looks them up; some files spell them as plain spaces."""
    taken = set(vocabulary.tokens)
    marked = []
    for token in vocabulary.tokens:
        run = SPACE_MARK * len(token)
        marked.append(run if not token.strip(" ") and run not in taken else token)
    return vocabulary._replace(tokens=marked)


def _word_piece(reader: _Reader, vocabulary: Vocabulary, roles: Mapping[str, int]) -> Tokenizer:
    """Files write word starts as "▁word" and inner pieces bare; WordPiece wants "word" and "##piece"."""
    special = set(vocabulary.of_type(*_SPECIAL_TYPES))
    tokens = []
    for token_id, token in enumerate(vocabulary.tokens):
        if token_id in special:
            tokens.append(token)
        else:
            tokens.append(token[1:] if token.startswith(SPACE_MARK) else "##" + token)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ModelFileError("tokenizer.ggml.tokens has a word piece twice; every token needs its own text")
    if "unk_token" not in roles:
        raise ModelFileError("tokenizer.ggml.unknown_token_id is missing; a bert tokenizer needs it")
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token=tokens[roles["unk_token"]]))
    lowercase = reader.flag("normalizer.lowercase", True)
    strip_accents = reader.flag("normalizer.strip_accents", lowercase)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    start, end = roles.get("bos_token", roles.get("cls_token")), roles.get("sep_token")
    _set_template(tokenizer, start, end)
    return tokenizer


def _add_ends(tokenizer: Tokenizer, reader: _Reader, roles: Mapping[str, int], *, add_bos: bool) -> None:
    ends: list[int | None] = []
    for name, flag, default in (("bos_token", "add_bos_token", add_bos), ("eos_token", "add_eos_token", False)):
        wanted = reader.flag(flag, default)
        if wanted and name not in roles and reader.has(flag):
            raise ModelFileError(f"tokenizer.ggml.{flag} is true, but no {name} id is given")
        ends.append(roles.get(name) if wanted else None)
    _set_template(tokenizer, *ends)


def _set_template(tokenizer: Tokenizer, start: int | None, end: int | None) -> None:
    """Encoding with special tokens puts these around the text. The names are local to the template."""
    if start is None and end is None:
        return
    named = [(name, token_id) for name, token_id in (("START", start), ("END", end)) if token_id is not None]
    template = [*(["START"] if start is not None else []), "$A", *(["END"] if end is not None else [])]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=named)


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are found whole where special tokens are parsed; user-defined ones are found whole always."""
    special = vocabulary.of_type(*_SPECIAL_TYPES)
    plain = vocabulary.of_type(TokenType.USER_DEFINED)
    tokens = vocabulary.tokens
    tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in special])
    # Runs of spaces are looked for once spaces are marked; a prefix the normalizer adds would break that.
    marks_only = isinstance(tokenizer.normalizer, normalizers.Replace)
    tokenizer.add_tokens(
        [AddedToken(tokens[i], normalized=marks_only and not tokens[i].strip(SPACE_MARK), special=False) for i in plain]
    )
    if tokenizer.get_vocab_size(with_added_tokens=True) != len(tokens):
        raise ModelFileError(
            "tokenizer.ggml.tokens: a control or user-defined token is not in the vocabulary as spelled"
        )


def _checked_merges(lines: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        # A token may itself be a space, so the cut is looked for from the second character on.
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(f"tokenizer.ggml.merges: {line!r:.80} does not join two tokens into a third")
        merges.append((left, right))
    return merges


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a token from two others, best token first.

    SentencePiece joins the neighbours that give the best-scored token, leftmost first; ranking longer left parts first
    among equal scores gives the same joins. Control and byte tokens are never made from plain text.
    """
    if vocabulary.scores is None:
        raise ModelFileError("tokenizer.ggml.scores is missing; a llama tokenizer needs one score a token")
    normal = vocabulary.of_type(TokenType.NORMAL)
    joinable = {vocabulary.tokens[token_id] for token_id in normal}
    merges = []
    for token_id in normal:
        token = vocabulary.tokens[token_id]
        if len(token) > MAX_MERGED_CHARACTERS:
            raise ModelFileError(f"tokenizer.ggml.tokens: token {token_id} has {len(token)} characters; too long")
        score = vocabulary.scores[token_id]
        for cut in range(len(token) - 1, 0, -1):
            if (left := token[:cut]) in joinable and (right := token[cut:]) in joinable:
                merges.append((-score, -cut, cut - len(token), left, right))
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for _, _, _, left, right in merges]


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}" if isinstance(value, str | int | float) else type(value).__name__
