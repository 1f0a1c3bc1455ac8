"""The objects beside the pods: a bad rule is refused early, no pool blocks another, and what a pool drops is deleted."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from kube_fleet import AGENT_IMAGE, account
from kube_stage import pool, template

from contracts.cluster import FOREVER
from holdfast.kubernetes import KubernetesCluster
from holdfast.kubernetes.access import find_access
from holdfast.kubernetes.api import Api
from holdfast.kubernetes.template import Setup
from holdfast.model.pool import HeadroomSpec, NetworkSpec, Pool, PoolSpec
from holdfast.ports.cluster import ClusterUnavailable
from holdfast_testcluster.access import MERGE, Access
from waiting import eventually

Open = Callable[[], KubernetesCluster]
TO_THE_DATABASE: list[dict[str, Any]] = [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 5432}]}]
TYPO: list[dict[str, Any]] = [{"too": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}]


@pytest.fixture
def open_cluster(control_plane: Access, namespace: str) -> Open:
    """Returns a cluster as a replica has it, with exactly the rights of an installation."""
    config = account(control_plane, namespace, "one")
    token = control_plane.service_account_token(namespace, f"{namespace}-one")
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    eventually(lambda: control_plane.request("GET", path, token=token).status == 200, 20, "its rights are known")
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    control_plane.request("POST", classes, {"metadata": {"name": "holdfast-headroom"}, "value": -10, "preemptionPolicy": "Never"})
    setup = Setup("one", AGENT_IMAGE, ("http://127.0.0.1:9",))
    return lambda: KubernetesCluster(Api(find_access(config)), namespace, setup, keep_output=0.0)


@pytest.fixture
async def cluster(open_cluster: Open) -> AsyncIterator[KubernetesCluster]:
    opened = open_cluster()
    yield opened
    await opened.close()


async def ensure_in_turn(open_cluster: Open, *pools: list[Pool]) -> None:
    """Calls `ensure` for each list of pools over its own connection, one after another, as other replicas would."""
    for wanted in pools:
        cluster = open_cluster()
        try:
            await cluster.ensure(wanted)
        finally:
            await cluster.close()


def networked(name: str = "linux", generation: int = 1, **spec: Any) -> Pool:
    made = pool(PoolSpec(**{"pod": template(FOREVER)} | spec), name, f"p-{name}")
    return msgspec.structs.replace(made, generation=generation)


def out_of(name: str = "linux", generation: int = 1, egress: list[dict[str, Any]] | None = None, **spec: Any) -> Pool:
    return networked(name, generation, network=NetworkSpec(egress=egress or []), **spec)


def rules(access: Access, namespace: str) -> dict[str, Any]:
    """Returns the egress rules that pools added, per pool."""
    found = access.ask("GET", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")["items"]
    mine = [each for each in found if each["metadata"]["name"].endswith("-egress")]
    return {each["metadata"]["labels"]["holdfast.dev/pool"]: each["spec"].get("egress") for each in mine}


def placeholders(access: Access, namespace: str) -> dict[str, dict[str, Any]]:
    found = access.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=holdfast.dev/headroom%3Done")["items"]
    return {each["metadata"]["name"]: each for each in found}


# Refusals

WRONG = [
    (NetworkSpec(egress=TYPO), "job", "network.egress[0].too", "unknown field"),
    (NetworkSpec(egress=[*TO_THE_DATABASE, {"ports": [{"prt": 53}]}]), "job", "network.egress[1].ports[0].prt", "unknown field"),
    (NetworkSpec(egress=[{"to": [{"ipBlock": {"cidr": "x"}}]}]), "job", "network.egress[0].to[0].ipBlock.cidr", "valid CIDR"),
    (NetworkSpec(egress=[{"to": "x"}]), "job", "network.egress", "cannot unmarshal string"),
    (
        NetworkSpec(ingress=[{"podSelector": {}}, {"podselector": {}}]),
        "session",
        "network.ingress[1].podselector",
        "unknown field",
    ),
    (NetworkSpec(ingress=[{}]), "session", "network.ingress[0]", "must specify a peer"),
]


@pytest.mark.parametrize(("network", "mode", "field", "reason"), WRONG, ids=[field for _, _, field, _ in WRONG])
async def test_a_bad_network_rule_is_refused_when_it_is_put(
    control_plane: Access, namespace: str, cluster: KubernetesCluster, network: NetworkSpec, mode: Any, field: str, reason: str
) -> None:
    found = await cluster.check(networked(mode=mode, network=network))
    assert [problem.field for problem in found] == [field]
    assert reason in found[0].reason
    assert control_plane.ask("GET", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")["items"] == []


async def test_a_good_network_rule_passes_also_where_its_policy_is_there_already(
    cluster: KubernetesCluster, open_cluster: Open
) -> None:
    good = networked(mode="session", network=NetworkSpec(egress=TO_THE_DATABASE, ingress=[{"podSelector": {}}]))
    assert await cluster.check(good) == []
    await cluster.ensure([good])
    assert await cluster.check(good) == []


async def test_a_bad_rule_that_was_not_refused_opens_nothing(
    cluster: KubernetesCluster, control_plane: Access, namespace: str, open_cluster: Open
) -> None:
    with pytest.raises(ClusterUnavailable, match=r"spec\.egress\[0\]\.too"):
        await cluster.ensure([out_of(egress=TYPO)])
    assert rules(control_plane, namespace) == {}


# Beside each other


async def test_what_is_refused_of_one_pool_holds_up_no_other_and_is_reported(
    cluster: KubernetesCluster, control_plane: Access, namespace: str, open_cluster: Open
) -> None:
    nowhere = {"spec": {"containers": [{"name": "work", "image": "x"}], "nodeSelector": {"not a label": "x"}}}
    room = HeadroomSpec(mode="constant", slots=2)
    bad, changed = out_of("bad", egress=TYPO, pod=nowhere, headroom=room), out_of("changed", 2)
    all_of_them = [bad, out_of("good", egress=TO_THE_DATABASE, headroom=room), changed]

    await cluster.ensure([out_of("changed", 1, TO_THE_DATABASE)])
    with pytest.raises(ClusterUnavailable) as refused:
        await cluster.ensure(all_of_them)
    assert "pool 'bad': NetworkPolicy" in str(refused.value)
    assert "pool 'bad': a placeholder" in str(refused.value)
    assert "2 refused" in str(refused.value), "one message per kind, not per slot"
    with pytest.raises(ClusterUnavailable):
        await cluster.ensure(all_of_them)  # the error is raised again, because the problem still exists
    assert list(rules(control_plane, namespace)) == ["good"], "the good one's are there, what another took back is swept"
    kept = placeholders(control_plane, namespace).values()
    assert [each["metadata"]["labels"]["holdfast.dev/pool"] for each in kept] == ["good", "good"]


async def test_a_way_out_that_a_pool_takes_back_is_closed_at_once(
    cluster: KubernetesCluster, control_plane: Access, namespace: str, open_cluster: Open
) -> None:
    await cluster.ensure([out_of(generation=1, egress=TO_THE_DATABASE)])
    assert list(rules(control_plane, namespace)) == ["linux"]
    await cluster.ensure([out_of(generation=2)])
    assert rules(control_plane, namespace) == {}


async def test_a_replica_with_an_older_view_takes_nothing_from_a_pool(
    control_plane: Access, namespace: str, open_cluster: Open
) -> None:
    await ensure_in_turn(
        open_cluster,
        [out_of(generation=1, egress=TO_THE_DATABASE)],
        [out_of(generation=3, egress=TO_THE_DATABASE)],
        [out_of(generation=2)],  # it was removed before, and is added again
        [],  # before the pool existed
    )
    assert list(rules(control_plane, namespace)) == ["linux"]


async def test_a_placeholder_on_its_way_out_keeps_no_room_and_is_replaced(
    control_plane: Access, namespace: str, open_cluster: Open
) -> None:
    linux = out_of(headroom=HeadroomSpec(mode="constant", slots=2))
    await ensure_in_turn(open_cluster, [linux])
    before = placeholders(control_plane, namespace)
    leaving = f"/api/v1/namespaces/{namespace}/pods/{min(before)}"
    control_plane.ask("PATCH", leaving, {"metadata": {"finalizers": ["kube.test/slow"]}}, MERGE)
    control_plane.ask("DELETE", leaving)
    try:
        await ensure_in_turn(open_cluster, [linux], [linux])
        after = placeholders(control_plane, namespace)
        staying = [name for name, each in after.items() if "deletionTimestamp" not in each["metadata"]]
        assert len(before) == len(staying) == 2
        assert max(before) in staying, "the other one is left alone"
    finally:
        control_plane.ask("PATCH", leaving, {"metadata": {"finalizers": None}}, MERGE)
    await ensure_in_turn(open_cluster, [linux])
    assert sorted(placeholders(control_plane, namespace)) == sorted(staying), "and nothing is moved for its name's sake"
