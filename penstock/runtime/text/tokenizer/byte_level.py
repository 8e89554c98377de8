"""A tokenizer of bytes: a token a byte, the byte its id. For models without a vocabulary of their own."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from penstock.runtime.text.tokenizer.pieces import byte_alphabet
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tokenizer.vocabulary import SpecialTokens


def byte_tokenizer(num_tokens: int = 256) -> Tokenizer:
    """Tokens beyond the bytes are never made of a text; as text they are their numbers."""
    vocabulary = byte_alphabet() | {f"<{token}>": token for token in range(256, num_tokens)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, SpecialTokens(None, frozenset(), {}))
