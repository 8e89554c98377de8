"""Machines by the name of a model: where cores, runners and models are put together.

`oracle:` and `scripted:` are models made of arithmetic and of a text; everything around a model can be tried with them.
Options follow the colon: `oracle:step_ms=5,vocab=256`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.assembly.peers import PeerSettings, make_peers
from penstock.config import EngineConfig
from penstock.console.progress import ProgressBar
from penstock.errors import ConfigError, StepInterruptedError
from penstock.runtime import preload
from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.runner import Masks, Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafters.table import make_speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.explain import explain_steps
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.engine.machine import Facts, Machine, Vector
from penstock.runtime.engine.oracle import OracleRunner, mix
from penstock.runtime.engine.peers.exchange import PeerExchange
from penstock.runtime.engine.process import OnPhase
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.engine.tiers.record import format_digest
from penstock.runtime.sizing import Sizing, make_scheduler, step_size
from penstock.runtime.text.grammar.compiler import GrammarCompiler
from penstock.runtime.text.grammar.vocabulary import whole_vocabulary
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer

LOGGER = logging.getLogger(__name__)

if TYPE_CHECKING:
    from penstock.assembly.engine import LoadedModel

BYTES = 256
DEFAULT_BLOCKS = 4096
DEFAULT_CONTEXT = 8192
EMBEDDING_SIZE = 16
SCRIPT = b"Water falls through the penstock, turns the wheel, and leaves as light. "
Maker = Callable[[EngineConfig, OnPhase, Path | None, PeerSettings | None], Machine]


def make_engine(
    config: EngineConfig, on_phase: OnPhase, step_log: Path | None = None, peers: PeerSettings | None = None
) -> Machine:
    """The machine for a config: engine, facts, and what embeds, if the model does. Its steps are logged if asked; with `peers`,
    it offers blocks to others and fetches theirs."""
    kind, colon, _ = config.model.model.partition(":")
    machine = MAKERS[kind if colon and kind in MAKERS else ""](config, on_phase, step_log, peers)
    if machine.engine.peers is not None:
        machine = machine._replace(facts=replace(machine.facts, offer=machine.engine.peers.address))
    explain_steps(machine.engine)
    return machine


def is_arithmetic(model: str) -> bool:
    """The model is one of those without weights or tokenizer."""
    kind, colon, _ = model.partition(":")
    return bool(colon and kind and kind in MAKERS)


def _oracle(config: EngineConfig, on_phase: OnPhase, step_log: Path | None, peers: PeerSettings | None) -> Machine:
    options = _options(config.model.model, {"step_ms": 0.0, "vocab": BYTES, "drafts": 0, "load_ms": 0.0})
    time.sleep(options["load_ms"] / 1000)
    sizing = _sizing(config)
    runner = OracleRunner(
        sizing.num_blocks, sizing.block_size, vocab_size=int(options["vocab"]), num_drafts=int(options["drafts"])
    )
    paced = Paced(runner, options["step_ms"] / 1000)
    grammars = GrammarCompiler(lambda: whole_vocabulary(byte_tokenizer(), int(options["vocab"])))
    vocab_size, state = int(options["vocab"]), GrammarState(grammars, time.monotonic)

    def meet(scheduler: Scheduler) -> PeerExchange | None:
        return make_peers(
            peers, config, lambda _: format_digest("oracle", vocab_size, sizing.block_size), scheduler, runner
        )

    return _machine(config, sizing, paced, vocab_size, on_phase, step_log, state, meet)


def _scripted(config: EngineConfig, on_phase: OnPhase, step_log: Path | None, peers: PeerSettings | None) -> Machine:
    options = _options(config.model.model, {"step_ms": 0.0, "token_ms": 0.0})
    runner = ScriptedRunner(lambda _, position: SCRIPT[position % len(SCRIPT)])
    paced = Paced(runner, options["step_ms"] / 1000, options["token_ms"] / 1000)
    return _machine(config, _sizing(config), paced, BYTES, on_phase, step_log)


def _real(config: EngineConfig, on_phase: OnPhase, step_log: Path | None, peers: PeerSettings | None) -> Machine:
    """Weights from files, on a device. Torch is imported here and nowhere before."""
    preload.begin()
    from penstock.assembly.engine import load, make_engine, size

    with ProgressBar() as progress:
        loaded = load(config, progress=progress, warms_up=True)
    on_phase("load the model")
    if not loaded.spec.generates:
        return _encoder(config, loaded, on_phase)
    sizing = size(config, loaded)
    name = loaded.files.name if loaded.files is not None else config.model.model
    depth = 2 if loaded.device.torch_device.type == "cuda" or config.parallel.pipeline > 1 else 1
    if loaded.group is not None:
        loaded.group.processes.on_lost = _end
    on_step = _step_writer(step_log, name, config, sizing, loaded.spec.vocab_size, depth)
    engine = make_engine(config, loaded, sizing, on_step, warms_up=True, peers=peers)
    on_phase("make room for the cache")
    rows = [("weights", sizing.weight_bytes), ("KV cache", sizing.kv_bytes)]
    if sizing.workspace_bytes:
        rows.append(("workspace", sizing.workspace_bytes))
    facts = replace(
        _facts(config, sizing, name, loaded.spec.vocab_size, tuple(rows)),
        max_batch_tokens=engine.scheduler.limits.max_batch_tokens,
        device=str(loaded.device.torch_device),
        num_active_parameters=loaded.spec.num_active_parameters,
        cached_tokens=sizing.num_cached_tokens,
        long_context="" if config.cache.long_context == "full" else config.cache.long_context,
    )
    close = engine.close if loaded.group is None else loaded.group.close
    return Machine(engine, facts, close=close)


def _end(fault: str) -> None:
    """The engine cannot go on without a rank. Whoever watches this process starts another."""
    LOGGER.debug("the engine ends: %s", fault)
    os._exit(1)


def _encoder(config: EngineConfig, loaded: "LoadedModel", on_phase: OnPhase) -> Machine:
    """A model that makes vectors. Its engine has nothing to do: nothing is generated."""
    from penstock.runtime.execution.eager.encoder import TextEncoder
    from penstock.runtime.layers.encoder import Encoder

    if not isinstance(loaded.network, Encoder):
        raise ConfigError(f"{config.model.model} neither generates text nor makes vectors")
    encoder = TextEncoder(loaded.network)
    idle = replace(_sizing(config), num_blocks=1, max_context=loaded.spec.max_context)
    machine = _machine(config, idle, ScriptedRunner(), loaded.spec.vocab_size, on_phase)
    facts = replace(
        machine.facts,
        model=loaded.files.name if loaded.files is not None else config.model.model,
        memory=(("weights", loaded.weight_bytes),),
        embedding_size=loaded.spec.hidden_size,
        can_generate=False,
    )
    return Machine(machine.engine, facts, lambda prompts: tuple(map(tuple, encoder.encode(prompts).tolist())))


MAKERS: dict[str, Maker] = {"": _real, "oracle": _oracle, "scripted": _scripted}


class Paced:
    """A runner whose steps, and their tokens, take at least some time. It computes when that has passed, if no request has
    interrupted it."""

    def __init__(self, runner: Runner, step_s: float, token_s: float = 0.0) -> None:
        self._runner = runner
        self._step_s, self.token_s = step_s, token_s
        self.yields = False
        self._interrupted = threading.Event()

    def interrupt(self, *, is_on: bool) -> None:
        (self._interrupted.set if is_on else self._interrupted.clear)()

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
        end_s = time.monotonic() + self._step_s + self.token_s * batch.num_tokens
        left_s = end_s - time.monotonic()
        if self.yields and left_s > 0.0 and self._interrupted.wait(left_s):
            raise StepInterruptedError("the step was interrupted; launch it again")
        if not self.yields and left_s > 0.0:
            time.sleep(left_s)
        return self._runner.launch(batch, masks).result()


def _machine(
    config: EngineConfig,
    sizing: Sizing,
    runner: Runner,
    vocab_size: int,
    on_phase: OnPhase,
    step_log: Path | None = None,
    grammar_state: GrammarState | None = None,
    meet: Callable[[Scheduler], PeerExchange | None] = lambda scheduler: None,
) -> Machine:
    on_step = _step_writer(step_log, config.model.model, config, sizing, vocab_size)
    speculator = make_speculator(config.speculation.drafter, config.speculation.draft_tokens)
    scheduler = make_scheduler(config, sizing)
    engine = Engine(
        scheduler,
        runner,
        time.monotonic,
        on_step=on_step,
        speculator=speculator,
        grammar_state=grammar_state,
        peers=meet(scheduler),
        step_size=step_size(config, "cpu") if isinstance(runner, Paced) and runner.token_s else None,
    )
    on_phase("make the model")
    facts = _facts(config, sizing, config.model.model, vocab_size, (("KV cache", sizing.kv_bytes),))
    return Machine(engine, replace(facts, embedding_size=EMBEDDING_SIZE), _embed)


def _facts(
    config: EngineConfig, sizing: Sizing, model: str, vocab_size: int, memory: tuple[tuple[str, int], ...]
) -> Facts:
    return Facts(
        model=model,
        max_context=sizing.max_context,
        vocab_size=vocab_size,
        num_blocks=sizing.num_blocks,
        block_size=sizing.block_size,
        max_sequences=config.scheduler.max_sequences,
        max_waiting=config.scheduler.max_waiting,
        max_waiting_tokens=config.scheduler.max_waiting_tokens,
        memory=memory,
    )


def _embed(prompts: Sequence[tuple[int, ...]]) -> tuple[Vector, ...]:
    """Unit vectors that depend on every token."""
    return tuple(_unit([mix(place, *prompt) / 2**63 - 1.0 for place in range(EMBEDDING_SIZE)]) for prompt in prompts)


def _unit(numbers: list[float]) -> Vector:
    length = sum(number * number for number in numbers) ** 0.5
    return tuple(number / length for number in numbers)


def _step_writer(
    path: Path | None, model: str, config: EngineConfig, sizing: Sizing, vocab_size: int, depth: int = 1
) -> Callable[[StepTime], None] | None:
    if path is None:
        return None
    # Costs and simulator: a start without a log is spared them.
    from penstock.tools.measure.profiles import Measuring, step_writer

    return step_writer(path, Measuring(model, config, sizing, vocab_size, depth))


def _sizing(config: EngineConfig) -> Sizing:
    block_size = config.cache.block_size
    return Sizing(
        num_blocks=config.cache.num_blocks or DEFAULT_BLOCKS,
        block_size=block_size,
        block_bytes=8 * block_size,
        max_context=config.model.max_context or DEFAULT_CONTEXT,
        weight_bytes=0,
        workspace_bytes=0,
        free_bytes=0,
    )


def _options(model: str, known: dict[str, float]) -> dict[str, float]:
    kind, _, text = model.partition(":")
    options = dict(known)
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise ConfigError(f"{kind}: has no option {name}; choose among {', '.join(known)}")
        try:
            options[name] = float(value)
        except ValueError:
            raise ConfigError(f"{kind}:{name} is {value!r}; give a number") from None
    return options
