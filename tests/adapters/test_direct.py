"""An adapter read as the bytes of its file lies in its slot as one that was read, checked and laid out number by number."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.runtime.execution.adapters.modules import ModuleBank
from penstock.runtime.execution.load.mix import read_mix
from penstock.runtime.execution.parallel.part import ModelPart
from penstock.runtime.files import ModelFiles
from penstock.runtime.layers.adapted.step import AdapterStep
from penstock.runtime.models.ranks import Ranks
from penstock.runtime.models.sharding import ModelShard, shard_model
from tests.adapters.writing import write
from tests.models.tiny import llama
from tests.runtime.parallel.test_split import whole_model

MAX_RANK = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    llama(tie_word_embeddings=True).save(folder)
    return folder


@pytest.fixture
def files(base: Path) -> ModelFiles:
    return ModelFiles(str(base), base)


@pytest.fixture
def bank(base: Path, files: ModelFiles) -> ModuleBank:
    return ModuleBank(whole_model(base), files.spec, AdapterStep(), 2, MAX_RANK)


def stored(folder: Path, kind: torch.dtype, leave_out: str = "") -> Path:
    """The same adapter in numbers of another kind."""
    path = folder / "adapter_model.safetensors"
    tensors = {
        name: tensor.to(kind) for name, tensor in load_file(path).items() if not leave_out or leave_out not in name
    }
    save_file(tensors, path)
    return folder


def same_slots(bank: ModuleBank, files: ModelFiles, path: Path, shard: ModelShard | None = None) -> bool:
    told = files.spec, MAX_RANK, shard
    quick, slow = bank.read(str(path), *told), bank.prepare(read_mix(str(path), *told))
    assert quick is not None
    assert (quick.digest, quick.rank, quick.base) == (slow.digest, slow.rank, slow.base)
    assert torch.equal(quick.places, slow.places)
    bank.put(1, quick)
    bank.put(2, slow)
    count = len(slow.numbers)
    return torch.equal(bank._numbers[0, :count], bank._numbers[1, :count])


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rank", "alpha"), [(4, 4), (16, 48), (20, 3), (64, 64)])
def test_whatever_numbers_rank_and_scale(
    bank: ModuleBank, files: ModelFiles, tmp_path: Path, kind: torch.dtype, rank: int, alpha: int
) -> None:
    path = stored(write(tmp_path / "one", files.spec, 1, rank, lora_alpha=alpha), kind)
    assert same_slots(bank, files, path)
    again = write(tmp_path / "again", files.spec, 2, rank, lora_alpha=alpha)
    assert same_slots(bank, files, stored(again, kind))
    assert len(bank._direct._layouts) == 1  # files that are laid out alike


def test_modules_that_are_left_out_and_patterns_of_alpha(bank: ModuleBank, files: ModelFiles, tmp_path: Path) -> None:
    path = write(tmp_path / "one", files.spec, 1, alpha_pattern={"v_proj": 9.0, "layers.0.mlp.up_proj": 1.0})
    assert same_slots(bank, files, stored(path, torch.float32, leave_out="k_proj"))


@pytest.mark.parametrize("rank", [0, 1])
def test_parts_of_ranks(base: Path, files: ModelFiles, tmp_path: Path, rank: int) -> None:
    shard = shard_model(files.spec, Ranks(2), rank)
    part = ModelPart(files.spec, Ranks(2), rank, torch.device("cpu"), torch.float32)
    part.load(files.model.recipes, files.checkpoint)
    bank = ModuleBank(part.model, files.spec, AdapterStep(), 2, MAX_RANK, shard)
    assert same_slots(bank, files, write(tmp_path / "one", files.spec, 1, 12, lora_alpha=5), shard)


def test_what_needs_more_than_its_bytes_is_left_to_be_read(bank: ModuleBank, files: ModelFiles, tmp_path: Path) -> None:
    told = files.spec, MAX_RANK, None
    dora = write(tmp_path / "dora", files.spec, 1, use_dora=True)
    tables = write(tmp_path / "tables", files.spec, 1, embeds=True, heads=True)
    wide = write(tmp_path / "wide", files.spec, 1, rank=65)
    good = write(tmp_path / "good", files.spec, 1)
    broken = write(tmp_path / "broken", files.spec, 1) / "adapter_model.safetensors"
    for number in (float("nan"), float("inf"), -float("inf")):
        tensors = load_file(good / "adapter_model.safetensors")
        next(iter(tensors.values()))[0, 0] = number
        save_file(tensors, broken)
        assert bank.read(str(broken.parent), *told) is None
    whole = (good / "adapter_model.safetensors").read_bytes()
    for size in (0, 4, 9, 500, len(whole) - 4):
        broken.write_bytes(whole[:size])
        assert bank.read(str(broken.parent), *told) is None
    broken.unlink()
    broken.symlink_to(good / "adapter_model.safetensors")
    for path in (dora, tables, wide, broken.parent, tmp_path, tmp_path / "none.gguf"):
        assert bank.read(str(path), *told) is None
    assert bank.read(str(good), *told) is not None
