"""What can be counted and simulated of a model in some number formats, and is not what `serve` does with it."""

from penstock.runtime.models.spec import COUNTED_ALONE, GQA, MLA, ModelSpec, MoE

MADE_WEIGHTS = ("int8", "int4")
"""Number formats that `quantize` writes once, before serve."""
FEW_BITS = ("fp8", *MADE_WEIGHTS)
SERVED_WEIGHTS = ("bf16", "file", *FEW_BITS)
"""Number formats that serve can be asked for, or that a file brings."""
SERVED_KV = ("bf16", "fp8", "int8")


def unserved(spec: ModelSpec, weights: str, kv: str) -> list[str]:
    """In words; none where it is computed as it is counted."""
    found = []
    if spec.architecture in COUNTED_ALONE:
        found.append(f"{COUNTED_ALONE[spec.architecture]} is not computed yet")
    if weights not in SERVED_WEIGHTS:
        found.append(f"{weights} weights: serve keeps weights as the file has them, or in fp8")
    if weights in FEW_BITS and any(isinstance(layer.mlp, MoE) for layer in spec.layers):
        found.append(f"{weights} weights: experts of a mixture are computed in 16 bits")
    if weights in MADE_WEIGHTS and not all(isinstance(layer.attention, GQA) for layer in spec.layers):
        found.append(f"{weights} weights: quantize writes models of grouped-query attention alone")
    if kv not in SERVED_KV:
        found.append(f"{kv} KV")
    elif kv != "bf16" and any(isinstance(layer.attention, MLA) for layer in spec.layers):
        found.append(f"{kv} KV: latents are kept in 16 bits")
    return found
