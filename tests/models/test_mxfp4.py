"""GPT-OSS as published: experts in 4-bit floats give the logits of the same numbers stored whole."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.models.ours import Ours
from tests.models.test_equal_transformers import check_equal
from tests.models.tiny import DECODERS

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def numbers(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[experts, rows, columns]. A byte holds two numbers, lower half first; scales are powers of two, 127 for one."""
    pairs = VALUES[torch.stack((blocks % 16, blocks // 16), dim=-1).long()]
    return (pairs.flatten(-2) * 2.0 ** (scales.float() - 127)[..., None]).flatten(-2)


def test_four_bit_experts(tmp_path: Path) -> None:
    variant = DECODERS["gpt-oss"]
    theirs = variant.save(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = state.pop(name).shape
        shape = (experts, rows, columns // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=generator, dtype=torch.uint8)
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        theirs.get_parameter(name).data = numbers(blocks, scales).transpose(1, 2).contiguous()
    save_file(state, path, metadata={"format": "pt"})
    config = variant.config() | {"quantization_config": {"quant_method": "mxfp4"}}
    check_equal(Ours(tmp_path, variant.context, config), theirs, variant)
