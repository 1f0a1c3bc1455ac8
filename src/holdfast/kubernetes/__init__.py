"""Pods of a Kubernetes namespace."""

from .cluster import KubernetesCluster

__all__ = ["KubernetesCluster"]
