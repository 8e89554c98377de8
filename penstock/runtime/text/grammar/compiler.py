"""Compiles a grammar's source into a matcher that tells which tokens are allowed; a bounded number is kept compiled.

Owns the vocabulary as the grammar engine sees it, made on first use or by `warm_up`. Threads may compile at the same time.
"""

import ctypes
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from penstock.errors import RequestError
from penstock.runtime.text.grammar.kinds import translate
from penstock.runtime.text.grammar.matcher import GrammarMatcher, fault_of
from penstock.runtime.text.grammar.vocabulary import few_tokens
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

MAX_KEPT = 256
"""Grammars kept compiled."""
MAX_KEPT_CHARACTERS = 1 << 22
"""Characters of the sources of all kept grammars: a compiled grammar takes memory in proportion to its source."""

LEXER_WORK, MASK_LEXER_WORK, MASK_ITEMS, LEXER_STATES = 200_000, 200_000, 50_000, 50_000
"""Work that the grammar engine may do for one grammar and for one mask before it gives up."""

WORD_BYTES = 4
COUNTING = ("max_tokens=", "stop=")
"""Attributes of rules that make a grammar count tokens."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary. `fill` writes masks for many matchers at once, over several cores."""

    def __init__(self, make_vocabulary: Callable[[], LLTokenizer]) -> None:
        self._make_vocabulary = make_vocabulary
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[LLMatcher, int]] = OrderedDict()
        """Compiled grammars, and how many characters their sources have."""
        self.num_hits = 0
        self.num_misses = 0

    @classmethod
    def for_checks(cls, tokenizer: Tokenizer) -> "GrammarCompiler":
        """A compiler that only tells which grammars can be used, without the model's vocabulary: small and quick to make."""
        return cls(lambda: few_tokens(tokenizer))

    def warm_up(self) -> None:
        """Build the vocabulary now, so that the first grammar does not wait for it."""
        self._compile("json_object", "")

    def keeps(self, kind: str, source: str) -> bool:
        """The grammar was compiled and is still kept."""
        with self._lock:
            return _digest(kind, source) in self._kept

    def compile(self, kind: str, source: str) -> GrammarMatcher:
        """A matcher at the beginning of a text. Raises RequestError for what is malformed, unsupported or too large."""
        digest = _digest(kind, source)
        with self._lock:
            found, _ = self._kept.get(digest, (None, 0))
            if found is not None:
                self._kept.move_to_end(digest)
                self.num_hits += 1
        if found is None:
            found = self._compile(kind, source)
            self._keep(digest, found, len(source))
        goes_back = not any(word in source for word in COUNTING)
        return GrammarMatcher(found.deep_copy(), kind, grammar=digest, goes_back=goes_back)

    def fill(self, entries: Sequence[tuple[GrammarMatcher, tuple[int, ...]]], bits: memoryview, num_words: int) -> None:
        """Write masks into `bits`, rows of `num_words` 32-bit words: one for each matcher as it stands, and one after each of
        its drafts. Bits that are set are tokens that may be drawn.

        The state of a matcher does not change. Rows after a draft that may not be drawn are empty, as are those of a matcher
        that has a fault.
        """
        num_rows = sum(1 + len(drafts) for _, drafts in entries)
        row_bytes = num_words * WORD_BYTES
        cells = (ctypes.c_char * (num_rows * row_bytes)).from_buffer(bits)
        address = ctypes.addressof(cells)
        ctypes.memset(address, 0, num_rows * row_bytes)
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        row = 0
        for matcher, drafts in entries:
            native = matcher.native
            if native.is_error():
                pass
            elif drafts and matcher.goes_back:
                drafted.append((native, row, list(drafts)))
            elif drafts:
                plain += _ahead(native, row, drafts)
            else:
                plain.append((native, row))
            row += 1 + len(drafts)
        is_shared = 2 * len({matcher.grammar for matcher, _ in entries}) <= len(entries)
        executor = self._lone_executor if is_shared else self._executor
        if plain:
            executor.unsafe_compute_mask_ptr(plain, address, row_bytes, num_rows)
        if drafted:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafted, address, row_bytes, num_rows)

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor()

    @cached_property
    def _lone_executor(self) -> LLExecutor:
        """For matchers of one grammar: they share a lock, and threads that wait for it are slower than one that need not."""
        return LLExecutor(num_threads=1)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return self._make_vocabulary()

    @cached_property
    def _limits(self) -> LLParserLimits:
        return LLParserLimits(
            initial_lexer_fuel=LEXER_WORK,
            step_lexer_fuel=MASK_LEXER_WORK,
            step_max_items=MASK_ITEMS,
            max_lexer_states=LEXER_STATES,
            verbose_errors=False,
        )

    def _compile(self, kind: str, source: str) -> LLMatcher:
        text = translate(kind, source)
        with self._lock:
            vocabulary = self._vocabulary
            self.num_misses += 1
        matcher = LLMatcher(vocabulary, text, limits=self._limits, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask shows grammars that lead nowhere, and is kept for those to come
        if matcher.is_error():
            raise fault_of(matcher.get_error(), kind)
        if matcher.is_stopped():
            raise RequestError("the grammar allows no text but an empty one; loosen it", code="invalid_grammar")
        return matcher

    def _keep(self, digest: bytes, matcher: LLMatcher, num_characters: int) -> None:
        with self._lock:
            self._kept[digest] = matcher, num_characters
            while len(self._kept) > MAX_KEPT or sum(size for _, size in self._kept.values()) > MAX_KEPT_CHARACTERS:
                self._kept.popitem(last=False)


def _ahead(native: LLMatcher, row: int, drafts: Sequence[int]) -> list[tuple[LLMatcher, int]]:
    """The matcher as it stands and after each draft, as matchers of their own, with the rows of their masks."""
    stages = [(native, row)]
    for draft in drafts:
        native = native.deep_copy()
        if not native.consume_token(draft):
            break
        row += 1
        stages.append((native, row))
    return stages


def _digest(kind: str, source: str) -> bytes:
    return hashlib.blake2b(f"{kind}\0{source}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
