"""Every architecture, in everything it can do, gives the logits and the greedy tokens of `transformers`."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.models.ours import Ours
from tests.models.tiny import DECODERS, VARIANTS, Variant

TOLERANCE = 1e-4
NUM_STEPS = 16


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (length,), generator=generator).tolist() for length in lengths]


@torch.inference_mode()
def check_equal(ours: Ours, theirs: PreTrainedModel, variant: Variant) -> None:
    longest = max(variant.prompt_lengths)
    for prompt in prompts(variant.prompt_lengths):
        num_steps = NUM_STEPS if len(prompt) == longest else 2
        tokens, logits = ours.greedy(prompt, split=len(prompt) // 3 + 1, num_steps=num_steps)
        expected = theirs(input_ids=torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
        # Each token of the answer is their likeliest after the tokens before it, so both answers are the same.
        assert tokens[len(prompt) :] == expected.argmax(-1)[len(prompt) - 1 : -1].tolist()


@pytest.mark.parametrize("name", DECODERS)
def test_logits_and_greedy_tokens(name: str, tmp_path: Path) -> None:
    variant = DECODERS[name]
    theirs = variant.save(tmp_path)
    check_equal(Ours(tmp_path, variant.context), theirs, variant)


def test_encoder_vector_is_the_mean_of_the_last_states(tmp_path: Path) -> None:
    theirs = VARIANTS["bert"].save(tmp_path)
    ours = Ours(tmp_path, 256)
    for prompt in prompts((1, 9, 40)):
        states = theirs(input_ids=torch.tensor([prompt])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0)
        torch.testing.assert_close(ours.encode(prompt), expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_dynamic_rope_grows_with_the_served_context(tmp_path: Path) -> None:
    variant = Variant("Llama", DECODERS["llama-dynamic"].settings | {"max_position_embeddings": 16})
    theirs = variant.save(tmp_path)
    (prompt,) = prompts((40,))
    logits = Ours(tmp_path, 40).logits(prompt, 0)
    torch.testing.assert_close(
        logits, theirs(input_ids=torch.tensor([prompt])).logits[0], atol=TOLERANCE, rtol=TOLERANCE
    )
