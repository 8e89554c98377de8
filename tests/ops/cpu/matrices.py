"""Random matrices of every packed kind."""

import torch

from penstock.runtime.ops.quantized.packed import GROUP, Grouped

KINDS = ("4 bits", "8 bits", "8 bits with minimums")
BY_ROW = "8 bits by row"
"""Made for rows that are rounded to 8 bits too (W8A8)."""


def random_matrix(kind: str, num_rows: int, num_columns: int, seed: int = 0) -> Grouped:
    generator = torch.Generator().manual_seed(seed)
    num_groups = num_columns // GROUP
    scales = (torch.rand((num_rows, num_groups), generator=generator) * 0.02).half()
    minimums = (torch.randn((num_rows, num_groups), generator=generator) * 0.1).half()
    if kind == "4 bits":
        values = torch.randint(0, 256, (num_rows, num_groups, GROUP // 2), dtype=torch.uint8, generator=generator)
        return Grouped(values, scales, minimums)
    values = torch.randint(-128, 128, (num_rows, num_groups, GROUP), dtype=torch.int8, generator=generator)
    if kind == BY_ROW:
        return Grouped(values, (scales[:, :1] / 8).expand(-1, num_groups), None, rounds=True)
    return Grouped(values, scales / 8, minimums if "minimums" in kind else None)
