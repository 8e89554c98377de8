"""An oracle in its own process that certain prompts upset: `python -m tests.engine.poisoned FOLDER`."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from penstock.assembly.machines import make_engine
from penstock.config import EngineConfig
from penstock.runtime.core.batch import Batch, Chunk, Logprob, StepOutput
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Masks, Runner
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.machine import Machine
from penstock.runtime.engine.process import OnPhase, run_engine

RAISE, DIE, HANG, EXHAUST = 249, 250, 251, 252
"""First tokens of prompts that make a step raise, kill the process, never end, and run out of memory."""


def made_up(token_id: int, num_top: int) -> Logprob:
    """A log probability that tells which token it belongs to."""
    top = tuple((token_id + rank & 255, -0.5 - rank) for rank in range(num_top))
    return Logprob(token_id, -0.5, top)


class Upset:
    """Computes like the runner inside, and makes up log probabilities for those who ask."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._params: dict[int, SamplingParams] = {}

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
        for chunk in batch.chunks:
            first = chunk.token_ids[0] if chunk.arrival is not None else None
            if first == RAISE:
                raise ValueError("this prompt cannot be computed")
            if first == EXHAUST:
                raise MemoryError
            if first == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            if first == HANG:
                time.sleep(3600)
            if chunk.arrival is not None:
                self._params[chunk.row] = chunk.arrival.params
        output = self._runner.launch(batch, masks).result()
        options = [self._params[chunk.row] for chunk in batch.chunks]
        drawn = [
            tuple(made_up(token, params.logprobs) for token in tokens) if params.logprobs is not None else ()
            for params, tokens in zip(options, output.tokens, strict=True)
        ]
        prompts = [
            self._prompt_logprobs(params.prompt_logprobs, chunk)
            for params, chunk in zip(options, batch.chunks, strict=True)
        ]
        return output._replace(logprobs=tuple(drawn), prompt_logprobs=tuple(prompts))

    def _prompt_logprobs(self, num_top: int | None, chunk: Chunk) -> tuple[Logprob, ...]:
        """Of the chunk's own prompt tokens, but the first of all."""
        if num_top is None or not chunk.token_ids:
            return ()
        tokens = chunk.token_ids[1:] if chunk.start == 0 else chunk.token_ids
        return tuple(made_up(token, num_top) for token in tokens)


def make(config: EngineConfig, on_phase: OnPhase) -> Machine:
    machine = make_engine(config, on_phase)
    engine = machine.engine
    upset = Engine(engine.scheduler, Upset(engine.runner), time.monotonic, grammar_state=engine.proposer.grammar_state)
    return machine._replace(engine=upset)


if __name__ == "__main__":
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    sys.exit(run_engine(partial(make, config), Path(sys.argv[1])))
