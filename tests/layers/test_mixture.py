"""However a mixture's experts are computed, dealt out to ranks or adapted, it routes as its model says."""

import copy

import pytest
import torch

from penstock.runtime.layers.adapted.mixture import ExpertChange, LoraExperts
from penstock.runtime.layers.adapted.step import AdapterStep, TokenSlots
from penstock.runtime.layers.moe import MixtureOfExperts
from penstock.runtime.layers.parallel import DealtExperts
from penstock.runtime.models.spec import GatedMLP, MoE
from penstock.runtime.ops.parallel.collective import Alone

EXPERT = GatedMLP(16, "silu")
SPECS = {
    "softmax": MoE(6, 2, EXPERT, True),
    "groups": MoE(6, 2, EXPERT, False, scale=2.5, num_groups=3, num_active_groups=1),
    "sigmoid": MoE(6, 2, EXPERT, True, scores="sigmoid", scale=1.5, num_groups=2, num_active_groups=1),
    "shared": MoE(6, 2, EXPERT, True, shared=GatedMLP(24, "silu")),
    "shared by a gate": MoE(6, 2, EXPERT, True, shared=GatedMLP(24, "silu"), shared_gated=True),
}
X = torch.randn((11, 20), generator=torch.Generator().manual_seed(2))


@pytest.fixture(params=SPECS.values(), ids=SPECS)
def mixture(request: pytest.FixtureRequest) -> MixtureOfExperts:
    made = MixtureOfExperts(request.param, X.shape[1], torch.float32).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(3)
    for parameter in made.parameters():
        parameter.normal_(0.0, 0.4, generator=generator)
    return made


@torch.inference_mode()
def test_parts_of_dealt_experts_are_summed_before_what_all_ranks_have(mixture: MixtureOfExperts) -> None:
    """One rank alone holds some of the experts; what it adds to the shared one is its part of the sum."""
    whole, nothing = mixture(X), torch.zeros_like(X)
    parts = []
    for held in (range(4), range(4, 6)):
        part = copy.deepcopy(mixture)
        for stack in (part.experts.gate_up, part.experts.down):
            stack.weight = torch.nn.Parameter(stack.weight[held.start : held.stop], requires_grad=False)
        part.mix = DealtExperts(part.spec, held, Alone())
        parts.append(part(X))
    mixture.mix = lambda x, *_: nothing
    torch.testing.assert_close(sum(parts) - mixture(X), whole)


@torch.inference_mode()
def test_adapted_tokens_are_routed_as_others(mixture: MixtureOfExperts) -> None:
    whole, step = mixture(X), AdapterStep()
    left, right = torch.zeros((6, 20, 2)), torch.ones((6, 2, 16))
    LoraExperts(mixture, step).changes[1] = ExpertChange((None, None), (left, right))
    torch.testing.assert_close(mixture(X), whole)
    step.tokens = TokenSlots(None, torch.tensor([0, 1] * 5 + [2], dtype=torch.int32))
    torch.testing.assert_close(mixture(X), whole)
    left += 0.1
    assert ((mixture(X) - whole).abs().amax(1) > 1e-3).tolist() == [False, True] * 5 + [False]
