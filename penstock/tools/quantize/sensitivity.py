"""How much each matrix suffers from each format: its model is computed with that matrix alone rounded.

The whole model is in memory for this, in float32, and a few hundred tokens of text. What is measured is the KL divergence of
its predictions from those of the model as it is.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.runtime.layers.decoder import Decoder
from penstock.tools.quantize.encodings import Encoding
from penstock.tools.quantize.mixed import Offer
from penstock.tools.quantize.observe import observed
from penstock.tools.quantize.walk import LayerWalk, Original


@torch.inference_mode()
def measure(
    original: Original, tokens: Tensor, encodings: Sequence[Encoding], progress: Callable[[str, int, int], None]
) -> dict[str, list[Offer]]:
    """By our name of each matrix in a layer, an offer for each encoding."""
    layers = [original.layer(number) for number in range(original.spec.num_layers)]
    head = original.head()
    walk = LayerWalk(original, tokens)
    walk.begin()
    before: list[Tensor] = []
    for model in layers:
        before.append(walk.states.clone())
        walk.run(model)
    truth = _predictions(head, walk.states)
    offers: dict[str, list[Offer]] = {}
    for number, model in enumerate(layers):
        progress("measuring layers", number, len(layers))
        walk.states = before[number].clone()
        with observed(model.layers[0], products=False) as seen:
            walk.run(model, keep=False)
        for name, parameter in list(model.layers[0].named_parameters()):
            if parameter.ndim < 2 or "norm" in name or "router" in name:
                continue
            whole, path = parameter.data.clone(), name.removesuffix(".weight")
            importance = seen[path].inputs.importance if path in seen else None
            found = []
            for encoding in encodings:
                read = encoding.round(whole.view(-1, whole.shape[-1]), importance).restored()
                parameter.data.copy_(read.view(whole.shape))
                walk.states = before[number].clone()
                for later in layers[number:]:
                    walk.run(later)
                off = truth - _predictions(head, walk.states)
                harm = float((truth.exp() * off).sum(-1).mean().clamp(min=0))
                found.append(Offer(encoding.bits_per_weight(whole.shape[-1]) * whole.numel(), harm))
            parameter.data.copy_(whole)
            offers[f"layers.{number}.{name}"] = found
    return offers


def _predictions(head: Decoder, states: Tensor) -> Tensor:
    hidden = head.norm(states.reshape(-1, states.shape[-1]).clone())
    return torch.log_softmax(head.logits(hidden), dim=-1)
