"""Random matrices of every packed kind."""

import torch

from penstock.runtime.ops.packed import GROUP, Grouped

KINDS = ("4 bits", "8 bits", "8 bits with minimums")


def random_matrix(kind: str, num_rows: int, num_columns: int, seed: int = 0) -> Grouped:
    generator = torch.Generator().manual_seed(seed)
    num_groups = num_columns // GROUP
    scales = (torch.rand((num_rows, num_groups), generator=generator) * 0.02).half()
    minimums = (torch.randn((num_rows, num_groups), generator=generator) * 0.1).half()
    if kind == "4 bits":
        values = torch.randint(0, 256, (num_rows, num_groups, GROUP // 2), dtype=torch.uint8, generator=generator)
        return Grouped(values, scales, minimums)
    values = torch.randint(-128, 128, (num_rows, num_groups, GROUP), dtype=torch.int8, generator=generator)
    return Grouped(values, scales / 8, minimums if "minimums" in kind else None)
