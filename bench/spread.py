"""What many requests took: rate, median and tail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    seconds: float
    latencies: list[float]  # seconds

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    @property
    def p50(self) -> float:
        return self.percentile(0.5)

    @property
    def p99(self) -> float:
        return self.percentile(0.99)
