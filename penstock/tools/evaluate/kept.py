"""Reports kept beside the fetched models, by the shape of the model that was made smaller: what a plan knows of quality."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT = "reports"
Shape = tuple[int, int, int, int]
"""Parameters, layers, hidden size, vocabulary."""


def keep(report: Mapping[str, Any], shape: Shape, cache: Path) -> Path:
    """The latest report of a format is the one that counts."""
    folder = _folder(shape, cache)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report['format']}-{report['method']}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def kept_reports(shape: Shape, cache: Path) -> list[dict[str, Any]]:
    """All of a model's, those with the least loss first; what cannot be read is passed over."""
    found = []
    for path in sorted(_folder(shape, cache).glob("*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            found.append({**report, "loss": _loss(report)})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return sorted(found, key=lambda each: each["loss"] if each["loss"] is not None else float("inf"))


def _loss(report: Mapping[str, Any]) -> float | None:
    """Of perplexity, as a share."""
    return next((float(each["change"]) for each in report["comparisons"] if each["measure"] == "perplexity"), None)


def _folder(shape: Shape, cache: Path) -> Path:
    return cache / KEPT / "-".join(map(str, shape))
