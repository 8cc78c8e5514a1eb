"""How lanes and loaded models stand, for Prometheus: gauges of what ``GET /health`` tells, read when asked for.

Owns their names. Every ingress tells the same, as far as it has heard: of several, take the largest. What one ingress
counts itself is in ``metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sie_ingress.cluster import Cluster

LANE = ("pool", "bundle", "machine_profile")
GAUGES = {
    "sie_lane_works_waiting": ("Works queued or in hand.", LANE),
    "sie_lane_pod_rate": ("Works that one pod clears in a second.", LANE),
    "sie_lane_pods_wanted": ("Pods that the backlog asks for.", LANE),
    "sie_lane_pods_ready": ("Pods that are ready.", LANE),
    "sie_lane_failed": ("1 while no pod comes and none is expected any more.", LANE),
    "sie_model_workers": ("Workers that have the model loaded.", ("model",)),
    "sie_degraded": ("1 while a lane has failed, or nobody tells how it stands.", ()),
}


class ClusterGauges(Collector):
    """The gauges of ``seen()``."""

    def __init__(self, seen: Callable[[], Cluster]) -> None:
        self._seen = seen

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """All of them without a value."""
        return (GaugeMetricFamily(name, help, labels=labels) for name, (help, labels) in GAUGES.items())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All of them as they are now."""
        cluster, gauges = self._seen(), {gauge.name: gauge for gauge in self.describe()}
        for lane in cluster.lanes:
            own = (lane.pool, lane.bundle, lane.gpu)
            gauges["sie_lane_works_waiting"].add_metric(own, lane.waiting)
            gauges["sie_lane_pod_rate"].add_metric(own, lane.rate)
            gauges["sie_lane_pods_wanted"].add_metric(own, lane.wanted)
            gauges["sie_lane_pods_ready"].add_metric(own, lane.live)
            gauges["sie_lane_failed"].add_metric(own, bool(lane.failure))
        for model in cluster.models:
            if model.worker_count:
                gauges["sie_model_workers"].add_metric([model.name], model.worker_count)
        gauges["sie_degraded"].add_metric((), cluster.status != "healthy")
        return iter(gauges.values())
