"""The parts of `make bench-kube` run with tiny sizes on the tests' control plane and show all their figures."""

from collections.abc import Callable
from typing import Any

import pytest
from bench_checks import check, ignore

from bench import kube, kube_scale
from bench.part import Part
from bench.sizes import TINY
from holdfast_testcluster.access import Access

PARTS = {"kube": (kube.KUBE, kube.pools), "kube-scale": (kube_scale.KUBE_SCALE, kube_scale.pools)}


@pytest.mark.parametrize("name", PARTS)
def test_every_figure_on_kubernetes_is_there_with_its_limit(
    name: str, control_plane: Access, namespace: str, make_nodes: Callable[..., Any]
) -> None:
    part: Part
    part, pools = PARTS[name]
    kubelet = make_nodes(control_plane, namespace, nodes=TINY.kube_nodes, hollow=True)
    with kube.KubeFleet(control_plane, namespace, kubelet, pools=pools(TINY)) as fleet:
        check(part, part.run_on(kube.Bench(control_plane, fleet), TINY, ignore))
