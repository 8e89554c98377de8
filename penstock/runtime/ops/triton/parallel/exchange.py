"""An exchange between processes on one card, in the order of each one's stream: nothing waits on the host, all can be recorded.

    publish    a rank's words go to its place in the half of this exchange
    meet       a rank says how many exchanges it has published, and waits until the others have said as much
    collect    the words of all ranks

How many exchanges there were is counted on the device, so that a replayed step takes the half whose turn it is. A rank is at
most one exchange ahead of any other: it never writes what another still reads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.runtime.ops.triton.host.launch import entry

BLOCK = 1024
FLAG_STRIDE = 16
"""int64 numbers from one rank's flag to the next."""


@entry
@triton.jit(do_not_specialize=["index", "num_words"], do_not_specialize_on_alignment=["words"])
def _publish(words, halves, exchanges, index, num_words, most_words, COUNT: tl.constexpr, SIZE: tl.constexpr):
    half = tl.load(exchanges) % 2
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    found = tl.load(words + place, mask=place < num_words)
    tl.store(halves + (half * COUNT + index) * most_words + place, found, mask=place < num_words)


@entry
@triton.jit(do_not_specialize=["index"])
def _meet(flags, exchanges, index, COUNT: tl.constexpr, STRIDE: tl.constexpr):
    published = tl.load(exchanges) + 1
    tl.atomic_xchg(flags + index * STRIDE, published, sem="release", scope="sys")
    for rank in tl.static_range(COUNT):
        while tl.load(flags + rank * STRIDE, volatile=True) < published:
            pass
    tl.store(exchanges, published)


@entry
@triton.jit(do_not_specialize=["num_words"], do_not_specialize_on_alignment=["everybody"])
def _collect(everybody, halves, exchanges, num_words, most_words, COUNT: tl.constexpr, SIZE: tl.constexpr):
    half = (tl.load(exchanges) - 1) % 2
    rank = tl.program_id(1)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    found = tl.load(halves + (half * COUNT + rank) * most_words + place, mask=place < num_words, volatile=True)
    tl.store(everybody + rank.to(tl.int64) * num_words + place, found, mask=place < num_words)


def exchange(words: Tensor, halves: Tensor, flags: Tensor, exchanges: Tensor, index: int) -> Tensor:
    """The words of every rank, [ranks, words]. `halves` is [2, ranks, most words]."""
    _, count, most_words = halves.shape
    num_words = len(words)
    blocks = triton.cdiv(num_words, BLOCK)
    _publish[(blocks,)](words, halves, exchanges, index, num_words, most_words, COUNT=count, SIZE=BLOCK)
    _meet[(1,)](flags, exchanges, index, COUNT=count, STRIDE=FLAG_STRIDE, num_warps=1)
    everybody = torch.empty((count, num_words), dtype=words.dtype, device=words.device)
    _collect[(blocks, count)](everybody, halves, exchanges, num_words, most_words, COUNT=count, SIZE=BLOCK)
    return everybody
