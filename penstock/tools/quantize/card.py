"""What a made model says of itself: README.md, and the same as values."""

from collections.abc import Mapping
from typing import Any

from penstock.tools.quantize.job import Making


def describe(job: Making, file_bytes: int, original_bytes: int, seconds: float, peak_bytes: int) -> dict[str, Any]:
    spec = job.target.spec
    return {
        "model": job.target.files.name,
        "architecture": spec.architecture,
        "parameters": spec.num_parameters,
        "format": job.scheme.name,
        "says": job.scheme.says,
        "method": job.method,
        "group": getattr(job.scheme.encoding, "group", None),
        "calibration_tokens": 0 if job.tokens is None else job.tokens.numel(),
        "bytes": file_bytes,
        "original_bytes": original_bytes,
        "bits_per_weight": round(8 * file_bytes / spec.num_parameters, 3),
        "seconds": round(seconds, 1),
        "peak_bytes": peak_bytes,
        "mixture": job.mixture or None,
        "layers": job.errors,
    }


def card(report: Mapping[str, Any], command: str) -> str:
    lines = [
        f"# {report['model']}, {report['format']}",
        "",
        f"Made by `{command}`.",
        "",
        "| | |",
        "|---|---|",
        f"| format | {report['says']} |",
        f"| method | {report['method']} |",
        f"| group | {report['group'] or '-'} |",
        f"| calibration tokens | {report['calibration_tokens']:,} |",
        f"| size | {report['bytes']:,} bytes, {report['bits_per_weight']} bits a weight |",
        f"| made of | {report['original_bytes']:,} bytes |",
        "",
        "Relative error behind each matrix, by layer (`quantization.json` has the figures):",
        "",
    ]
    names = [name for name in (report["layers"] or [{}])[0] if name != "layer"]
    lines.append("| layer | " + " | ".join(names) + " |")
    lines.append("|---" * (len(names) + 1) + "|")
    for errors in report["layers"]:
        cells = " | ".join(f"{errors.get(name, 0):.4f}" for name in names)
        lines.append(f"| {errors['layer']} | {cells} |")
    return "\n".join(lines) + "\n"
