"""How byte-level vocabularies cut text into words before merging: one row a `tokenizer.ggml.pre` name.

The rows are facts about published tokenizers. A name that is not here is refused, since a wrong cut gives wrong tokens
without any other sign.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from penstock.errors import ModelFileError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDINGS}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDINGS}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDINGS}"
)

# Words of large "o200k"-style vocabularies: capitals, then small letters.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDINGS}"
)
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDINGS}"
)

# Written as code points: several of these letters change when text is normalised.
_DEEPSEEK_LETTERS = (
    r"\s?["
    "\u0041-\u005a\u0061-\u007a\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126"
    "\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)
_DEEPSEEK_ASIAN = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DIGITS = "digits"
"""Every digit by itself."""


@dataclass(frozen=True, slots=True)
class Split:
    """The cutting rules of one family: patterns applied one after another, each isolating its matches."""

    patterns: tuple[str, ...]
    nfc: bool = False
    """Text is brought to Unicode form NFC first."""
    ignore_merges: bool = False
    """A word that is a token is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Where the file does not say, a beginning-of-text token is added."""

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts: list[pre_tokenizers.PreTokenizer] = []
        for pattern in self.patterns:
            if pattern == DIGITS:
                cuts.append(pre_tokenizers.Digits(individual_digits=True))
            else:
                cuts.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(cuts)


@dataclass(frozen=True, slots=True)
class FalconSplit(Split):
    """Falcon cuts digits after bytes have become characters, so its order cannot be written as patterns alone."""

    patterns: tuple[str, ...] = ()

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation(behavior="contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
            ]
        )


_SPLIT_GPT2 = Split((_GPT2,))
_SPLIT_SMOLLM = Split((DIGITS, _GPT2))
_SPLIT_LLAMA3 = Split((_LLAMA3,), ignore_merges=True, add_bos=True)
_SPLIT_QWEN2 = Split((_QWEN2,), nfc=True)
_SPLIT_DEEPSEEK = Split(
    (r"[\r\n]", _DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _DEEPSEEK_ASIAN, DIGITS)
)

SPLITS: dict[str, Split] = {
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _SPLIT_GPT2,
    "phi-2": _SPLIT_GPT2,
    "mpt": _SPLIT_GPT2,
    "olmo": Split((_GPT2,), nfc=True),
    "smollm": _SPLIT_SMOLLM,
    "starcoder": _SPLIT_SMOLLM,
    "refact": _SPLIT_SMOLLM,
    "codeshell": _SPLIT_SMOLLM,
    "command-r": Split((DIGITS, _GPT2), nfc=True),
    "llama-bpe": _SPLIT_LLAMA3,
    "llama3": _SPLIT_LLAMA3,
    "llama-v3": _SPLIT_LLAMA3,
    "dbrx": Split((_LLAMA3,)),
    "smaug-bpe": Split((_LLAMA3,)),
    "qwen2": _SPLIT_QWEN2,
    "deepseek-r1-qwen": _SPLIT_QWEN2,
    "qwen35": Split((_QWEN35,), nfc=True),
    "stablelm2": Split((_QWEN2,)),
    "deepseek-llm": _SPLIT_DEEPSEEK,
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, DIGITS)),
    "deepseek-v3": Split((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS)),
    "tekken": Split((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": Split((_GPT4O,)),
    "llama4": Split((_GPT4O,)),
    "falcon": FalconSplit(),
}


def split_named(name: str) -> Split:
    split = SPLITS.get(name)
    if split is None:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {name[:80]!r}, a way of cutting words that is not known here; "
            f"known: {', '.join(sorted(SPLITS))}. Use the model's Hugging Face directory with its tokenizer.json"
        )
    return split
