"""The oracle under masks: of the tokens it may draw it draws what its digests say. And the right answer without an engine."""

from llguidance import LLTokenizer

from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.request import Grammar, Request
from penstock.runtime.core.runner import Masks
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.engine.oracle import EMPTY, OracleRunner, digest, draw
from penstock.runtime.text.grammar.compiler import GrammarCompiler
from tests.engine.answers import Clock

VOCAB_SIZE = 256
END = 0


class Bytes:
    """A vocabulary of bytes; the byte 0 ends an answer."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = END
    special_token_ids = (END,)
    tokens = (b"<end>", *(bytes((byte,)) for byte in range(1, VOCAB_SIZE)))

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


GRAMMARS = GrammarCompiler(lambda: LLTokenizer(Bytes(), eos_token=[END]))


def grammar_state(**settings) -> GrammarState:
    return GrammarState(GRAMMARS, Clock(), **settings)


class Waiting:
    """A ticket that waits for its masks."""

    def __init__(self, launch) -> None:
        self._launch = launch
        self._output: StepOutput | None = None

    def draw(self) -> None:
        if self._output is None:
            self._output = self._launch()

    def result(self) -> StepOutput:
        self.draw()
        return self._output


class MaskedOracle(OracleRunner):
    """With `waits` masks are asked for in `draw`, as a device that computes meanwhile would."""

    def __init__(self, num_blocks: int, block_size: int, *, waits: bool = False, num_drafts: int = 0) -> None:
        super().__init__(num_blocks, block_size, vocab_size=VOCAB_SIZE, num_drafts=num_drafts)
        self._waits = waits

    def launch(self, batch: Batch, masks: Masks | None = None):
        waiting = Waiting(lambda: super(MaskedOracle, self).launch(batch, masks).result())
        if not self._waits or masks is None:
            waiting.draw()
        return waiting


def expected_answer(request: Request, choice: int) -> list[int]:
    """What the oracle draws under the request's grammar, computed with neither cache nor scheduler nor engine."""
    params = request.params
    grammar = params.grammar or Grammar("", "")
    matcher = GRAMMARS.compile(grammar.kind, grammar.source)
    digests: list[int] = []
    tokens = list(request.prompt)
    while len(tokens) < len(request.prompt) + (params.max_tokens or 0) and not matcher.is_over:
        for position in range(len(digests), len(tokens)):
            digests.append(digest(tokens[position], position, digests[-1] if digests else EMPTY))
        bits = bytearray(VOCAB_SIZE // 8)
        GRAMMARS.fill([(matcher, ())], memoryview(bits), VOCAB_SIZE // 32)
        allowed = [token for token in range(VOCAB_SIZE) if bits[token // 8] >> token % 8 & 1]
        tokens.append(allowed[draw(digests, params, choice, VOCAB_SIZE) % len(allowed)])
        if tokens[-1] == END:
            break
        matcher.advance(tokens[-1:])
    return tokens[len(request.prompt) :]
