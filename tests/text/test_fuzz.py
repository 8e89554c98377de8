"""Seeds that were worth keeping, and a few more."""

import pytest

from tests.text.fuzz import KEPT, one


@pytest.mark.parametrize("seed", [*KEPT, *range(100, 130)])
def test_nothing_made_up_breaks_grammars_or_tools(seed: int) -> None:
    one(seed)
