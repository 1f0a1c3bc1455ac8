"""Benchmarks: each figure beside its limit, both measured in the same run. `make bench` prints one JSON line a figure."""
