"""The public names are those of the table, and each is where the table says."""

import subprocess
import sys
from importlib import import_module

import pytest

import penstock


def test_all_names_are_in_the_table_and_the_table_has_no_others() -> None:
    assert set(penstock.__all__) == set(penstock._HOMES)
    assert len(penstock.__all__) == len(set(penstock.__all__))


@pytest.mark.parametrize("name", penstock.__all__)
def test_a_public_name_is_the_one_of_its_home(name: str) -> None:
    assert getattr(penstock, name) is getattr(import_module(penstock._HOMES[name]), name)
    assert getattr(penstock, name).__module__ == penstock._HOMES[name]


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'engines'"):
        _ = penstock.engines


def test_the_offline_engine_needs_no_web_server_and_no_wire() -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)
BLOCKED = {"msgspec", "zmq", "starlette", "uvicorn", "rich", "huggingface_hub", "llguidance", "ray", "httptools", "uvloop"}
sys.meta_path.insert(0, Block())
from penstock import LLM
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
