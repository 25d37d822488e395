"""One answer to a scrape: values put under the names of `families`, as text of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ps_wire.metrics.families import Family, MetricKind
from ps_wire.metrics.histogram import Histogram

_MADE = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class Page(Collector):
    """The metrics of one moment. Every family of it is there, also one without a series."""

    def __init__(self, families: Iterable[Family]) -> None:
        """Has no values."""
        self._families = {family.name: family for family in families}
        self._metrics = {
            family.name: _MADE[family.kind](family.name, family.meaning, labels=family.labels)
            for family in self._families.values()
        }

    def put(self, name: str, value: float, *labels: object) -> None:
        """A series of a counter or gauge, with its labels in the family's order."""
        assert len(labels) == len(self._families[name].labels), (name, labels)
        self._metrics[name].add_metric([str(label) for label in labels], value)

    def put_histogram(self, name: str, histogram: Histogram, *labels: object) -> None:
        """A series of a histogram."""
        assert len(labels) == len(self._families[name].labels), (name, labels)
        buckets, seen = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            seen += count
            buckets.append((_bound(bound), seen))
        self._metrics[name].add_metric([str(label) for label in labels], buckets, histogram.total)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """See `prometheus_client.registry.Collector`."""
        yield from self._metrics.values()

    def text(self) -> bytes:
        """In the text format."""
        return generate_latest(self)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
