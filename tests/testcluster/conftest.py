"""Fixtures: a node of the test cluster, and the pods on it."""

from collections.abc import Callable

import pytest

from cluster_pods import Pods
from holdfast_testcluster.access import Access
from holdfast_testcluster.kubelet_process import KubeletProcess


@pytest.fixture
def nodes(control_plane: Access, namespace: str, make_nodes: Callable[..., KubeletProcess]) -> KubeletProcess:
    """Starts one node for the test's namespace. Its image `greeter:test` prints a greeting with its argument."""
    return make_nodes(control_plane, namespace, images={"greeter:test": ["sh", "-c", 'echo "hello $0"']})


@pytest.fixture
def pods(nodes: KubeletProcess) -> Pods:
    assert nodes.namespace
    return Pods(nodes.access, nodes.namespace)
