"""Pods as process trees on this machine."""

from .cluster import LocalCluster

__all__ = ["LocalCluster"]
