"""Pods of a real API server keep to the contract of every cluster."""

from contracts.cluster import ClusterContract


class TestKubernetesCluster(ClusterContract):
    pass
