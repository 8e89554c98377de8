"""A model made of arithmetic that reasons: bytes, tokens that mark reasoning, a template that knows them.

python -m tests.server.thinking serve FLAGS      the server
python -m tests.server.thinking work FOLDER      its engine
"""

import sys
import time
from functools import partial
from pathlib import Path

import msgspec
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from penstock.assembly.machines import make_engine
from penstock.assembly.serving import serve
from penstock.cli.serve import Config
from penstock.config import EngineConfig
from penstock.console import args
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.engine.machine import Machine
from penstock.runtime.engine.process import OnPhase, run_engine
from penstock.runtime.text.grammar.compiler import GrammarCompiler
from penstock.runtime.text.grammar.vocabulary import whole_vocabulary
from penstock.runtime.text.stream.styles import style_of_template
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tokenizer.vocabulary import SpecialTokens
from penstock.service.server.text import Text
from tests.text.templates import QWEN

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
VOCAB_SIZE = 256 + len(MARKERS)
MODEL = f"oracle:vocab={VOCAB_SIZE}"
TEMPLATE = (
    QWEN + "{%- if reasoning_effort %}{{- '[' + reasoning_effort + ']' }}{%- endif %}{# </think> <tool_call> tools #}"
)


def thinking_tokenizer() -> Tokenizer:
    plain = byte_tokenizer()
    backend = Backend(models.BPE(vocab={plain.token(byte) or "": byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return Tokenizer(backend, SpecialTokens(None, frozenset(), {}))


def thinking_text() -> Text:
    return Text(thinking_tokenizer(), ChatTemplate(TEMPLATE), style_of_template(TEMPLATE))


def make(config: EngineConfig, on_phase: OnPhase) -> Machine:
    machine = make_engine(config, on_phase)
    grammars = GrammarCompiler(lambda: whole_vocabulary(thinking_tokenizer(), VOCAB_SIZE))
    before = machine.engine
    engine = Engine(
        before.scheduler, before.runner, time.monotonic, grammar_state=GrammarState(grammars, time.monotonic)
    )
    return machine._replace(engine=engine)


def main(mode: str, *words: str) -> int:
    if mode == "work":
        return run_engine(
            partial(make, msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)), Path(words[0])
        )
    config = args.build(Config, args.parse(Config, list(words)).values)
    worker = [sys.executable, "-m", "tests.server.thinking", "work"]
    return serve(config.engine, config.server, worker, thinking_text)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
