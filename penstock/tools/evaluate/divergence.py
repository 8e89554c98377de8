"""How far a model's predictions are from another's, token by token: KL divergence, agreement on the likeliest token.

A reference is rows of log probabilities over the whole vocabulary, or what was saved of them: the likeliest tokens, and the
mass of all others together. Merging tokens can only make a divergence smaller, so what is found with a saved reference is a
lower bound, close to the truth where the tokens kept hold nearly all mass.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ConfigError, PenstockError
from penstock.runtime.formats.safetensors import SafetensorsFile
from penstock.runtime.formats.tensor_file import write_safetensors
from penstock.tools.evaluate.intervals import ratio_of_sums

KEPT = 256
"""Likeliest tokens saved of a row."""
QUANTILES = (0.5, 0.9, 0.99, 0.999)
ROWS_AT_ONCE = 128
LEAST = -80.0


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The likeliest tokens of each row."""

    tokens: Tensor
    logprobs: Tensor
    """[rows, kept]"""
    rest: Tensor
    """[rows] log of the mass of all other tokens"""

    @classmethod
    def of(cls, rows: Tensor, kept: int = KEPT) -> "KeptRows":
        logprobs, tokens = rows.topk(min(kept, rows.shape[1]), dim=-1)
        return cls(tokens.int(), logprobs, remaining(logprobs))


def remaining(logprobs: Tensor) -> Tensor:
    """Log of the mass that these tokens leave."""
    mass = 1.0 - logprobs.double().exp().sum(-1)
    return mass.clamp(min=0).log().clamp(min=LEAST).float()


def divergences(reference: Tensor | KeptRows, rows: Tensor) -> Tensor:
    """KL(reference || rows) of every row, in nats; not below 0."""
    if isinstance(reference, KeptRows):
        found = rows.gather(1, reference.tokens.long())
        own = torch.cat((reference.logprobs, reference.rest[:, None]), 1).double()
        other = torch.cat((found, remaining(found)[:, None]), 1).double()
        return (own.exp() * (own - other)).sum(-1).clamp(min=0)
    parts = []
    for own, other in zip(reference.split(ROWS_AT_ONCE), rows.split(ROWS_AT_ONCE)):  # type: ignore[no-untyped-call]
        own, other = own.double(), other.double()
        parts.append((own.exp() * (own - other)).sum(-1).clamp(min=0))
    return torch.cat(parts)


@dataclass
class Divergence:
    """Sums over the windows of a text."""

    per_token: list[Tensor] = field(default_factory=list)
    agreed: list[int] = field(default_factory=list)
    """Of each window: rows whose likeliest token is the reference's."""
    lost: list[float] = field(default_factory=list)
    """Of each window: by how much less likely its tokens are."""
    counts: list[int] = field(default_factory=list)

    def add(self, reference: Tensor | KeptRows, rows: Tensor, reference_logprob: float, logprob: float) -> None:
        likeliest = reference.tokens[:, 0] if isinstance(reference, KeptRows) else reference.argmax(-1)
        self.per_token.append(divergences(reference, rows).cpu())
        self.agreed.append(int((rows.argmax(-1) == likeliest).sum()))
        self.lost.append(reference_logprob - logprob)
        self.counts.append(len(rows))

    def report(self) -> dict[str, Any]:
        every = torch.cat(self.per_token)
        mean, *kl = ratio_of_sums([float(each.sum()) for each in self.per_token], self.counts)
        same, *shares = ratio_of_sums(self.agreed, self.counts)
        ratio, *ratios = (float(np.exp(each)) for each in ratio_of_sums(self.lost, self.counts))
        return {
            "kl": round(mean, 6),
            "kl_interval": [round(max(each, 0.0), 6) for each in kl],
            "kl_quantiles": {f"{q:g}": round(float(np.quantile(every.numpy(), q)), 6) for q in QUANTILES},
            "kl_most": round(float(every.max()), 6),
            "same_top_1": round(same, 6),
            "same_top_1_interval": [round(min(max(each, 0.0), 1.0), 6) for each in shares],
            "perplexity_ratio": round(ratio, 6),
            "perplexity_ratio_interval": [round(each, 6) for each in ratios],
        }


class SavedLogits:
    """A reference's rows in a file, window by window, so that it need not be run again."""

    def __init__(self, path: Path) -> None:
        try:
            file = SafetensorsFile(path)
            self._parts = {
                name: np.frombuffer(file.tensor(name).data.tobytes(), dtype).reshape(file.tensor(name).shape)
                for name, dtype in _PARTS.items()
            }
        except PenstockError as error:
            raise ConfigError(
                f"--reference {path} holds no saved logits ({error}); save some with --save-logits"
            ) from error
        self._reached = 0

    def window(self, token_ids: list[int]) -> tuple[KeptRows, float]:
        """The next window's rows and how likely its tokens were; it must be the same text."""
        begin, end = self._reached, self._reached + len(token_ids)
        if self._parts["text"][begin:end].tolist() != token_ids:
            raise ConfigError("--reference was saved on another text, or with other --tokens, --context or stride")
        self._reached = end
        tokens, logprobs, rest, own = (torch.from_numpy(self._parts[name][begin:end].copy()) for name in _ROWS)
        return KeptRows(tokens, logprobs, rest), float(own.double().sum())


_PARTS: dict[str, np.dtype[Any]] = {
    "text": np.dtype(np.int64),
    "tokens": np.dtype(np.int32),
    "logprobs": np.dtype(np.float32),
    "rest": np.dtype(np.float32),
    "own": np.dtype(np.float32),
}
_ROWS = ("tokens", "logprobs", "rest", "own")


@dataclass
class LogitsKeeper:
    """Rows to be saved."""

    text: list[int] = field(default_factory=list)
    rows: list[KeptRows] = field(default_factory=list)
    own: list[Tensor] = field(default_factory=list)

    def add(self, token_ids: list[int], rows: Tensor, own: Tensor) -> None:
        self.text += token_ids
        self.rows.append(KeptRows.of(rows))
        self.own.append(own.float().cpu())

    def write(self, path: Path) -> None:
        write_safetensors(
            path,
            {
                "text": np.array(self.text, np.int64),
                "tokens": torch.cat([each.tokens for each in self.rows]).cpu().numpy(),
                "logprobs": torch.cat([each.logprobs for each in self.rows]).float().cpu().numpy(),
                "rest": torch.cat([each.rest for each in self.rows]).cpu().numpy(),
                "own": torch.cat(self.own).numpy(),
            },
        )
