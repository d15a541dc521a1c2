"""What a Prometheus server reads of a page of metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(page: bytes) -> Samples:
    families = text_string_to_metric_families(page.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(page: bytes, name: str, **labels: str) -> float | None:
    return samples(page).get((name, tuple(sorted(labels.items()))))
