"""Imports in a hurry leave the process as they found it."""

import gc
from contextlib import suppress

import pytest

from penstock.early import hastened


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collecting_is_paused_and_comes_back_even_after_a_failure(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with suppress(ImportError), hastened():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
