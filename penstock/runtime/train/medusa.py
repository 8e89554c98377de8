"""Medusa heads in training: each is a residual block on the target's state, trained for the position it guesses."""

from torch import Tensor, nn
from torch.nn import functional

from penstock.runtime.train.eagle import shifted
from penstock.runtime.train.examples import Padded


class MedusaModule(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.linears = [nn.Linear(hidden_size, hidden_size) for _ in range(num_heads)]
        self.blocks = nn.ModuleList(self.linears)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)  # at first each head foretells the state it reads

    def predict(self, texts: Padded, depth: int) -> list[Tensor]:
        """Predicted states by guess, [texts, n - 1, hidden]: entry i of guess d is computed from position i - d, so that all
        guesses of an entry are of one position, as with a head that predicts step by step."""
        states = texts.states[:, :-1]
        return [
            shifted(states + functional.silu(block(states)), number)
            for number, block in enumerate(self.linears[:depth])
        ]

    def named_tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for number, block in enumerate(self.linears):
            named |= {f"{number}.0.linear.weight": block.weight, f"{number}.0.linear.bias": block.bias}
        return named
