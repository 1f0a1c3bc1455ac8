"""A namespace with a node in it, for each test."""

from collections.abc import Callable
from typing import Any

import pytest
from kube_stage import KubeStage

from kube.access import Access
from kube.fixtures import *  # noqa: F403


@pytest.fixture
def stage(control_plane: Access, namespace: str, make_nodes: Callable[..., Any]) -> KubeStage:
    return KubeStage(control_plane, namespace, make_nodes(control_plane, namespace, nodes=1))
