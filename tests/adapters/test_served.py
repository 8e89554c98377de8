"""Adapters crossed with whatever else a server does: mixed with others, each answers as it does alone on a plain server.

What a feature changes for the base too (rounded KV, a forgetting cache) is held against the same feature, asked one by one.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapters.crossing import ASKED, BASE, NAMES, answers, ask, pieces, write_models
from tests.adapters.making import write_adapter
from tests.machine import wait_until
from tests.router.service import started_together
from tests.server.serving import serving

pytestmark = pytest.mark.slow
COMMON = ("--max-context", "256", "--max-sequences", "16", "--no-tuned")
PLAIN = ("--speculate", "off", "--no-prefix-caching")
LOSSLESS: dict[str, tuple[str, ...]] = {
    "n-grams": ("--speculate", "ngram", "--draft-tokens", "4"),
    "draft model": ("--speculate", "model", "--draft-model", "{folder}/draft.gguf"),
    "eagle": ("--speculate", "eagle:{folder}/eagle"),
    "preemption": ("--num-blocks", "24", "--speculate", "off"),
    "one slot": ("--max-adapters", "1", "--speculate", "off"),
    "host tier": ("--num-blocks", "32", "--kv-host", "16MiB", "--speculate", "ngram"),
    "disk tier": ("--num-blocks", "32", "--kv-disk", "{scratch}/kv", "--speculate", "off"),
    "tensor": ("--tensor", "2", "--speculate", "ngram"),
    "pipeline": ("--pipeline", "2", "--speculate", "ngram"),
    "replicas": ("--replicas", "2", "--speculate", "off"),
    "roles": ("--role", "1P1D", "--speculate", "off"),
}
LOSSY: dict[str, tuple[str, ...]] = {
    "watermark": ("--watermark", "{folder}/key"),
    "streaming": ("--long-context", "streaming:4+28"),
    "heavy hitters": ("--long-context", "h2o:16+16"),
    "int8 cache": ("--kv", "int8"),
    "fp8 cache": ("--kv", "fp8"),
    "fp8 weights": ("--weights", "fp8"),
    "packed weights": ("--weights", "packed"),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait for one another longer than a tiny model takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("served") / "models")


def adapted(folder: Path, *flags: str) -> Any:
    all_of_them = ("--adapters-dir", str(folder / "adapters"))
    return serving(*COMMON, *all_of_them, *flags, model=str(folder / f"{BASE}.gguf"), is_real=True)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    """What each answers on a plain server that knows no other."""
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        own = () if name == BASE else ("--adapter", f"{name}={folder / 'adapters' / name}")
        with serving(*COMMON, *PLAIN, *own, model=str(folder / f"{BASE}.gguf"), is_real=True) as server:
            found |= answers(server.url, [name])
    return found


def worded(flags: tuple[str, ...], folder: Path, scratch: Path) -> list[str]:
    return [flag.format(folder=folder, scratch=scratch) for flag in flags]


@pytest.mark.parametrize("feature", LOSSLESS)
def test_mixed_with_others_an_adapter_answers_as_it_does_alone(
    feature: str, folder: Path, alone: Any, tmp_path: Path
) -> None:
    flags = worded(LOSSLESS[feature], folder, tmp_path)
    with adapted(folder, *flags) as server:
        for both in (True, False):  # the second time from what was cached and kept
            assert answers(server.url, NAMES, num_at_once=8, both=both) == alone


@pytest.mark.parametrize("feature", LOSSY)
def test_what_a_feature_changes_it_changes_alike_among_others(feature: str, folder: Path, tmp_path: Path) -> None:
    flags = worded(LOSSY[feature], folder, tmp_path)
    with ExitStack() as stack:
        made = [adapted(folder, *flags, *PLAIN), adapted(folder, *flags)]
        plain, server = started_together(stack, made)
        expected = answers(plain.url, NAMES)
        for both in (True, False):
            assert answers(server.url, NAMES, num_at_once=8, both=both) == expected


LONG = ASKED["completion"]._replace(body={"prompt": "the cat", "max_tokens": 200, "temperature": 0, "ignore_eos": True})
"""An answer in whose middle something happens."""


def test_an_answer_ends_with_the_adapter_it_began_with(folder: Path, tmp_path: Path) -> None:
    """Whether its files are read anew meanwhile, or it is unloaded, which waits for it."""
    write_adapter(tmp_path / "one", 1)
    flags = (*COMMON, *PLAIN, "--adapters-dir", str(tmp_path))
    with serving(*flags, model=str(folder / f"{BASE}.gguf"), is_real=True) as server:
        before = ask(server.url, "one", LONG)
        body = {"lora_name": "one", "lora_path": "one", "load_inplace": True}
        with server.http() as http:
            texts = pieces(http, "one", LONG)
            begun = next(texts)
            write_adapter(tmp_path / "one", 2)
            assert server.post("/v1/load_lora_adapter", body).status_code == 200
            assert begun + "".join(texts) == before
            after = ask(server.url, "one", LONG)
            assert after != before
            texts = pieces(http, "one", LONG)
            begun = next(texts)
            assert server.post("/v1/unload_lora_adapter", {"lora_name": "one"}).status_code == 200
            assert server.metric("penstock_adapter_requests") == 0
            assert begun + "".join(texts) == after
        assert server.post("/v1/completions", {"model": "one", "prompt": "a"}).status_code == 404


def test_a_new_engine_answers_for_every_adapter_as_the_killed_one_did(folder: Path, tmp_path: Path) -> None:
    """Those that admins loaded too."""
    for number in range(2):
        write_adapter(tmp_path / f"b{number}", number)
    with serving(
        *COMMON,
        *("--adapters-dir", str(tmp_path)),
        model=str(folder / f"{BASE}.gguf"),
        is_real=True,
    ) as server:
        write_adapter(tmp_path / "late", 5)
        assert server.post("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": "late"}).status_code == 200
        names = [BASE, "b0", "b1", "late"]
        before = {name: ask(server.url, name, LONG) for name in names}
        killed = server.engine_pid
        with server.http() as http:
            texts = pieces(http, "late", LONG)
            begun = next(texts)
            os.kill(killed, signal.SIGKILL)
            assert before["late"].startswith(begun)
            with pytest.raises((AssertionError, httpx.HTTPError)):
                assert begun + "".join(texts) == "", "it is not told that the engine has ended"
        wait_until(lambda: server.get("/health").status_code == 200 and server.engine_pid != killed)
        assert {name: ask(server.url, name, LONG) for name in names} == before
