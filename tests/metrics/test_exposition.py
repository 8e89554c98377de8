"""Laws of the exposition: Prometheus' own parser reads back what was counted."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser

from penstock.metrics.exposition import Buckets, Counter, Gauge, exposition

LABEL_VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n"\\'), max_size=20)


@given(st.dictionaries(LABEL_VALUES, st.floats(0, 1e12), min_size=1, max_size=5), LABEL_VALUES)
def test_counters_are_read_back(values: dict[str, float], model: str) -> None:
    counter = Counter("vllm:things", "Things, counted")
    for label, value in values.items():
        counter.add(value, (("kind", label),))
    (family,) = parser.text_string_to_metric_families(exposition([counter], {"model_name": model}))
    assert family.type == "counter"
    assert {sample.labels["kind"]: sample.value for sample in family.samples} == values
    assert {sample.labels["model_name"] for sample in family.samples} == {model}


@given(st.lists(st.floats(0, 100), max_size=50))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    buckets = Buckets("wait_seconds", "Waits", (0.1, 1.0, 10.0))
    for value in values:
        buckets.add(value)
    (family,) = parser.text_string_to_metric_families(exposition([buckets], {}))
    by_bound = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert by_bound == {
        "0.1": sum(value <= 0.1 for value in values),
        "1": sum(value <= 1.0 for value in values),
        "10": sum(value <= 10.0 for value in values),
        "+Inf": len(values),
    }
    (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
    assert count == len(values)


def test_a_gauge_is_asked_when_it_is_read() -> None:
    level = [1.0]
    gauge = Gauge("level", "Level", lambda: level[0])
    assert "level 1\n" in exposition([gauge], {})
    level[0] = 2.5
    assert "level 2.5\n" in exposition([gauge], {})
