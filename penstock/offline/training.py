"""Puts a training together: a loaded model, a runner that records its states, heads, a folder."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.assembly.drafting import make_head_drafter
from penstock.assembly.engine import Progress
from penstock.config import HEADS, configure
from penstock.errors import ConfigError
from penstock.offline.llm import LLM
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.draft.drafter import Drafter
from penstock.runtime.execution.choose import make_runner
from penstock.runtime.execution.heads.eagle import EagleShape
from penstock.runtime.execution.heads.states import TextStates
from penstock.runtime.execution.heads.target import head_target
from penstock.runtime.execution.native.decoder import NativeDecoder
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.models.spec import only_gqa
from penstock.runtime.train import folder as folders
from penstock.runtime.train.eagle import EagleModule
from penstock.runtime.train.examples import Example, draft_vocabulary, split
from penstock.runtime.train.medusa import MedusaModule
from penstock.runtime.train.record import AnswerRecorder, Transcript, record
from penstock.runtime.train.training import Schedule, acceptance, train, use_threads

BLOCK_SIZE = 16
DEPTH = 3
"""Guesses in a row that are trained and measured."""
MLP_FACTOR = 1.5
"""Width of an EAGLE head's feed-forward sublayer, by the hidden size: a cheap head is worth more than a good one."""
RATES = {"eagle": 1e-3, "medusa": 1e-3}
STATES_WEIGHTS = {"eagle": 0.5, "medusa": 0.0}


def listen(llm: LLM) -> AnswerRecorder:
    """Have the model's states recorded while it answers."""
    _network(llm)
    recorder = AnswerRecorder()
    llm.engine.runner.states = recorder  # type: ignore[attr-defined]
    return recorder


def train_heads(
    llm: LLM,
    examples: Sequence[Example],
    out: Path,
    kind: str,
    seconds: float,
    vocabulary: int,
    progress: Progress,
) -> dict[str, Any]:
    """Train heads, write them, and tell what they are worth on the texts held out."""
    model = _network(llm)
    spec, target = model.spec, head_target(model)
    learned, held_out = split(examples)
    if not held_out:
        raise ConfigError(f"{len(examples)} answers are too few to hold some out; give more prompts")
    token_ids = draft_vocabulary(learned, vocabulary, spec.vocab_size).to(target.device)
    output = target.output_rows(token_ids)
    attention = only_gqa(spec.layers[0].attention, "what heads are trained for")
    shape = head_shape(spec.hidden_size, attention.num_heads, attention.num_kv_heads)
    module = EagleModule(shape, target) if kind == "eagle" else MedusaModule(spec.hidden_size, DEPTH)
    module.to(target.device)
    schedule = Schedule(DEPTH, seconds, RATES[kind], STATES_WEIGHTS[kind])
    with use_threads(getattr(llm.loaded.device, "num_threads", None)):
        found = train(
            module, learned, output, schedule, time.monotonic,
            lambda share, loss: progress(f"training, loss {loss:.2f}", int(share * seconds), int(seconds)),
        )  # fmt: skip
        rates = acceptance(module, held_out, output, token_ids, DEPTH)
    config = head_config(llm, kind, shape)
    folders.write_heads(out, module.named_tensors(), token_ids, config | {"acceptance": [round(r, 4) for r in rates]})
    return {
        "model": llm.files.name,
        "kind": kind,
        "training_s": round(seconds, 1),
        "batches": found.num_batches,
        "tokens_seen": found.num_tokens,
        "loss": round(found.loss, 4),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "vocabulary_covers": round(_coverage(held_out, token_ids.tolist()), 4),
        "acceptance_by_position": [round(rate, 4) for rate in rates],
    }


def trial_drafter(llm: LLM, name: str, token_ids: Sequence[int]) -> Drafter:
    """A drafter by the name that --speculate gives it, to be tried on a text that is known."""
    config = configure(llm.config, speculate=name)
    loaded = llm.loaded
    if config.speculation.drafter not in HEADS:
        raise ConfigError(f"{name} cannot be tried; name medusa:DIR or eagle:DIR")
    (example,) = examples_of(_network(llm), [(token_ids[:1], token_ids[1:])], lambda stage, done, total: None)
    source = TextStates(example.states.float().to(loaded.device.torch_device))
    drafting = make_head_drafter(loaded.network, config, loaded.files, loaded.device.free_bytes, source)
    if drafting.drafter is None:
        raise ConfigError(f"{name} has no heads")
    return drafting.drafter


def examples_of(model: NativeDecoder | Decoder, transcripts: Sequence[Transcript], progress: Progress) -> list[Example]:
    longest = max(len(prompt) + len(answer) for prompt, answer in transcripts)
    num_blocks = -(-longest // BLOCK_SIZE)
    runner = make_runner(model, RunnerShape(num_blocks, BLOCK_SIZE, 1, num_blocks * BLOCK_SIZE))
    return record(runner, transcripts, num_blocks, lambda done, total: progress("recording states", done, total))


def _network(llm: LLM) -> NativeDecoder | Decoder:
    network = llm.loaded.network
    if not isinstance(network, NativeDecoder | Decoder):
        raise ConfigError(f"{llm.files.name} does not generate text in one process: nothing can be trained for it")
    return network


def head_shape(hidden_size: int, num_heads: int, num_kv_heads: int) -> EagleShape:
    """Heads as the target has them where they divide its hidden size evenly."""
    if hidden_size % (2 * num_heads):
        num_heads = num_kv_heads = max(hidden_size // 64, 1)
    width = -(-round(MLP_FACTOR * hidden_size) // 32) * 32
    return EagleShape(hidden_size, num_heads, num_kv_heads, width)


def head_config(llm: LLM, kind: str, shape: EagleShape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "draft_kind": kind,
        "target_name": llm.files.name,
        "target_fingerprint": llm.files.fingerprint,
        "vocab_size": llm.spec.vocab_size,
        "hidden_size": shape.hidden_size,
    }
    if kind == "medusa":
        return config | {"medusa_num_heads": DEPTH, "medusa_num_layers": 1}
    return config | {
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
    }


def _coverage(examples: Sequence[Example], token_ids: list[int]) -> float:
    """Share of the held-out answers' tokens that heads can guess at all."""
    known = set(token_ids)
    said = [token for example in examples for token in example.tokens[example.num_prompt :].tolist()]
    return sum(token in known for token in said) / max(len(said), 1)
