"""A page of metrics as Prometheus reads it: the one reader of that text, for doctor, top, bench and the live view."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricSample(NamedTuple):
    labels: Mapping[str, str]
    value: float


Page = Mapping[str, list[MetricSample]]


def parse_page(text: str) -> Page:
    """The samples of a page by name. Lines that are no samples are passed over: a page may be anybody's."""
    page: dict[str, list[MetricSample]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        page.setdefault(name, []).append(MetricSample(dict(_LABEL.findall(labels or "")), value))
    return page


def sum_of(page: Page, name: str) -> float | None:
    """Over all labels; None if the page does not have it."""
    return sum(sample.value for sample in page[name]) if name in page else None
