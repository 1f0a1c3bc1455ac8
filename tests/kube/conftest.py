"""The fixtures of `kube.fixtures` for the tests here, and a node."""

from collections.abc import Callable

import pytest

from kube.access import Access
from kube.fixtures import *  # noqa: F403
from kube.kubelet_process import KubeletProcess
from kube.pods import Pods


@pytest.fixture
def nodes(control_plane: Access, namespace: str, make_nodes: Callable[..., KubeletProcess]) -> KubeletProcess:
    """One node for the test's namespace, where the image `greeter:test` says hello to its argument."""
    return make_nodes(control_plane, namespace, images={"greeter:test": ["sh", "-c", 'echo "hello $0"']})


@pytest.fixture
def pods(nodes: KubeletProcess) -> Pods:
    assert nodes.namespace
    return Pods(nodes.access, nodes.namespace)
