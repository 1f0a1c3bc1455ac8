"""Processes on one machine keep the contract of every cluster."""

from contracts.cluster import ClusterContract, OutputContract


class TestLocalCluster(ClusterContract, OutputContract):
    pass
