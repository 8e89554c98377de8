"""A step in parts that follow each other through a pipeline, so that no stage waits for a whole step of another.

Every rank cuts the same batch alike. Chunks keep their order, since one may read what an earlier one has written.
"""

from penstock.runtime.core.batch import Batch


def micro_batches(batch: Batch, count: int) -> list[Batch]:
    """At most `count` parts, of about as many tokens each; copies are done with the first."""
    total = batch.num_tokens
    parts: list[list[int]] = [[] for _ in range(count)]
    done = 0
    for index, chunk in enumerate(batch.chunks):
        middle = done + chunk.length / 2
        parts[min(int(middle * count / max(total, 1)), count - 1)].append(index)
        done += chunk.length
    filled = [part for part in parts if part] or [[]]
    first, *rest = (batch.only(part) for part in filled)
    return [first, *(part._replace(copies=()) for part in rest)]
