"""The cluster on one machine: each pod is a process tree."""

from .cluster import LocalCluster

__all__ = ["LocalCluster"]
