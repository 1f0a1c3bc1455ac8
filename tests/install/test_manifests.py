"""The output of `holdfast manifests` fits the code that it runs: flags, ports, labels, times."""

from typing import Any

import h11
import msgspec
import pytest
import typer
import yaml
from typer.testing import CliRunner

from holdfast.api.probes import Probes
from holdfast.cli.main import app
from holdfast.cli.main import main as run_cli
from holdfast.install import Secrets, Values, objects, replicas
from holdfast.install.manifests import HEADROOM, WORKERS
from holdfast.install.values import WrongValues
from holdfast.kubernetes import policies
from holdfast.kubernetes.rights import CLUSTER, NAMESPACED
from holdfast.kubernetes.template import RESTRICTED, Setup
from holdfast.serve import GRACE
from install.helm import REPO

Json = dict[str, Any]
PLAIN = Values(namespace="ns", install="blue", dsn_secret="db")
ALL = Values(namespace="ns", install="blue", try_postgres="postgres:17", metrics=True, secrets=Secrets.fresh())
CLUSTER_WIDE = {"CustomResourceDefinition", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "Namespace"}


def one(kind: str, found: list[Json], name: str = "blue") -> Json:
    (it,) = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return it


def pod(values: Values = PLAIN) -> Json:
    spec: Json = one("Deployment", objects(values))["spec"]["template"]["spec"]
    return spec


def container(values: Values = PLAIN) -> Json:
    (it,) = pod(values)["containers"]
    return dict(it)


def serve_options() -> tuple[set[str], set[str]]:
    """Returns the flags and the environment variables of `holdfast serve`."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    variables = [each.envvar for each in command.params if each.envvar]
    return {flag for each in command.params for flag in each.opts}, {str(each) for each in variables}


# It fits serve


def test_serve_knows_every_flag_and_variable_that_replicas_get() -> None:
    flags, variables = serve_options()
    args = container(msgspec.structs.replace(PLAIN, pooled=True))["args"]
    assert args[0] == "serve"
    assert {arg.partition("=")[0] for arg in args[1:]} <= flags
    env = {each["name"] for each in container()["env"]}
    assert env <= variables
    assert variables - env == {"KUBECONFIG", "HOLDFAST_DATA_DIR"}, "serve has a setting that the installation does not make"


def test_probes_ask_the_port_and_the_paths_that_answer() -> None:
    asked = [container()[kind]["httpGet"] for kind in ("livenessProbe", "readinessProbe")]
    probes = {each["path"]: each["port"] for each in asked}
    assert probes == {"/healthz": "probes", "/readyz": "probes"}
    assert f"--probe-port={replicas.PROBES}" in container()["args"]
    assert {"name": "probes", "containerPort": replicas.PROBES} in container()["ports"]
    ready = Probes(lambda: True)
    for path in probes:
        assert ready._status(h11.Request(method="GET", target=path, headers=[("host", "x")])) == 200


def test_a_replica_has_time_to_drain() -> None:
    lingers = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= 2 * (lingers + GRACE)


def test_workers_may_reach_the_address_that_agents_get() -> None:
    """The network policy of workers allows exactly these pods and this port."""
    policy = policies.control(Setup("blue", "image", (), replicas_namespace="ns"))["spec"]["egress"][0]
    assert policy["to"][0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "ns"}}
    selected = policy["to"][0]["podSelector"]["matchLabels"]
    template = one("Deployment", objects(PLAIN))["spec"]["template"]
    assert selected.items() <= template["metadata"]["labels"].items()
    assert policy["ports"][0]["port"] == replicas.PORT == one("Service", objects(PLAIN))["spec"]["ports"][0]["port"]
    env = {each["name"]: each.get("value") for each in container()["env"]}
    assert env["HOLDFAST_AGENT_URL"] == "http://blue.ns.svc:7070"
    assert one("Service", objects(PLAIN))["spec"]["selector"] == selected


def test_the_throw_away_postgres_is_no_replica() -> None:
    found = objects(ALL)
    selector = one("Service", found)["spec"]["selector"]
    labels = one("StatefulSet", found, "blue-postgres")["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items()


def test_replicas_run_as_the_image_does_and_write_nowhere_else() -> None:
    own = pod()["securityContext"] | container()["securityContext"]
    assert RESTRICTED.items() <= own.items()
    written = {each["mountPath"] for each in container()["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/tmp", "/var/lib/holdfast"}
    assert all("emptyDir" in each or "secret" in each for each in pod()["volumes"])


def test_the_class_of_workers_is_the_one_that_exists() -> None:
    env = {each["name"]: each.get("value") for each in container()["env"]}
    assert env["HOLDFAST_PRIORITY_CLASS"] == WORKERS
    assert one("PriorityClass", objects(PLAIN), WORKERS)["preemptionPolicy"] == "Never"
    assert one("PriorityClass", objects(PLAIN), HEADROOM)["value"] >= -10, "cluster-autoscaler ignores what is lower"


# It is an installation


def test_everything_is_in_the_replicas_namespace_except_their_rights_over_workers() -> None:
    """So replicas may change nothing in their own namespace, where their Secrets are."""
    for each in objects(ALL):
        where = each["metadata"].get("namespace")
        expected = "ns-workers" if each["kind"] in ("Role", "RoleBinding") else "ns"
        assert where == (None if each["kind"] in CLUSTER_WIDE else expected), each["kind"]
    assert [each["metadata"]["name"] for each in objects(ALL) if each["kind"] == "Namespace"] == ["ns-workers"]
    env = {each["name"]: each.get("value") for each in container()["env"]}
    assert (env["HOLDFAST_NAMESPACE"], env["HOLDFAST_REPLICAS_NAMESPACE"]) == ("ns-workers", "ns")


def test_one_namespace_for_both_stays_possible() -> None:
    found = objects(msgspec.structs.replace(ALL, workers_namespace="ns"))
    assert {each["metadata"].get("namespace") for each in found if each["kind"] not in CLUSTER_WIDE} == {"ns"}
    assert not [each for each in found if each["kind"] == "Namespace"]


def test_replicas_are_told_which_secrets_are_theirs() -> None:
    env = {each["name"]: each.get("value") for each in container(ALL)["env"]}
    made = {each["metadata"]["name"] for each in objects(ALL) if each["kind"] == "Secret"}
    assert set(env["HOLDFAST_OWN_SECRETS"].split(",")) == made == {"blue-keys", "blue-postgres", "blue-metrics"}
    assert "db" in {each["name"]: each.get("value") for each in container()["env"]}["HOLDFAST_OWN_SECRETS"].split(",")


def test_prometheus_gets_a_token_of_its_own() -> None:
    found = objects(ALL)
    (endpoint,) = one("ServiceMonitor", found)["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "blue-metrics", "key": "token"}
    admin, metrics = (one("Secret", found, name)["data"]["token"] for name in ("blue-keys", "blue-metrics"))
    assert admin != metrics
    mounts = {each["name"]: each["mountPath"] for each in container(ALL)["volumeMounts"]}
    env = {each["name"]: each.get("value") for each in container(ALL)["env"]}
    assert env["HOLDFAST_METRICS_TOKEN_FILE"] == f"{mounts['metrics']}/token"


def test_only_workers_and_named_peers_reach_the_replicas() -> None:
    values = msgspec.structs.replace(PLAIN, clients=("monitoring",))
    policy = one("NetworkPolicy", objects(values))["spec"]
    assert policy["podSelector"] == {"matchLabels": values.labels}
    assert policy["policyTypes"] == ["Ingress"]
    api, probes = policy["ingress"]
    workers, around, named = api["from"]
    assert workers["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ns-workers"}
    assert (
        workers["podSelector"]["matchLabels"].items()
        <= policies.base(Setup("blue", "i", ()))["spec"]["podSelector"]["matchLabels"].items()
    )
    assert (around, named["namespaceSelector"]["matchLabels"]) == (
        {"podSelector": {}},
        {"kubernetes.io/metadata.name": "monitoring"},
    )
    assert (api["ports"], probes) == (
        [{"protocol": "TCP", "port": replicas.PORT}],
        {"ports": [{"protocol": "TCP", "port": replicas.PROBES}]},
    )


def test_two_installations_share_no_name() -> None:
    def names(**other: str) -> set[tuple[str, str, str]]:
        shared = {"crd": False, "priority_classes": False, "make_namespace": False}
        found = objects(Values(dsn_secret="db", secrets=Secrets.fresh(), **shared, **other))
        return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in found}

    assert not names(namespace="a-b", install="c") & names(namespace="a", install="b-c")
    assert not names(namespace="a", install="b") & names(namespace="a", install="c")


def test_a_single_replica_has_no_budget_that_would_block_a_drain_forever() -> None:
    kinds = {each["kind"] for each in objects(msgspec.structs.replace(PLAIN, replicas=1))}
    assert "PodDisruptionBudget" not in kinds
    assert one("PodDisruptionBudget", objects(PLAIN))["spec"]["minAvailable"] == 1


def test_no_right_is_granted_twice_or_for_everything() -> None:
    seen = [(right.group, right.resource, verb, right.only) for right in (*NAMESPACED, *CLUSTER) for verb in right.verbs]
    assert len(seen) == len(set(seen))
    assert not {"*"} & {part for each in seen for part in each}
    assert all(right.reason for right in (*NAMESPACED, *CLUSTER))


def test_the_document_has_the_table_of_rights() -> None:
    text = (REPO / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    for right in (*NAMESPACED, *CLUSTER):
        resource = f"`{right.resource}`" + (f" ({right.group})" if right.group else "")
        name = f", only `{right.only.replace('{install}', '<install>')}`" if right.only else ""
        assert f"| {resource}{name} | {' '.join(right.verbs)} | {right.reason} |" in text


# The command


def test_the_command_prints_what_the_functions_give() -> None:
    args = ["manifests", "--namespace", "ns", "--install", "blue", "--dsn-secret", "db", "--no-secrets"]
    printed = CliRunner().invoke(app, args)
    assert printed.exit_code == 0, printed.output
    assert list(yaml.safe_load_all(printed.output)) == objects(PLAIN)
    assert "&id" not in printed.output


def test_each_print_makes_other_secrets_and_a_repr_shows_none() -> None:
    def data() -> Json:
        printed = CliRunner().invoke(app, ["manifests", "--install", "blue", "--dsn-secret", "db"])
        found: Json = one("Secret", list(yaml.safe_load_all(printed.output)), "blue-keys")
        assert found["immutable"] is True
        return dict(found["data"])

    assert data() != data()
    assert ALL.secrets is not None
    assert ALL.secrets.token not in repr(ALL)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "--dsn-secret"),
        (["--dsn-secret", "db", "--try-postgres"], "--dsn-secret"),
        (["--dsn-secret", "db", "--install", "Blue"], "--install"),
        (["--dsn-secret", "db", "--install", "default"], "--install"),
        (["--dsn-secret", "db", "--install", "a" * 41], "--install"),
        (["--dsn-secret", "db", "--namespace", "a.b"], "--namespace"),
        (["--dsn-secret", "D B"], "--dsn-secret"),
        (["--dsn-secret", "db", "--image", "a b"], "--image"),
    ],
)
def test_what_makes_no_installation_is_refused_in_one_line(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_cli(["manifests", *args])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.count("\n") == 1


def test_wrong_values_are_refused_by_the_functions_too() -> None:
    with pytest.raises(WrongValues, match="--replicas"):
        objects(msgspec.structs.replace(PLAIN, replicas=0))


def test_replicas_spread_over_nodes_and_zones_but_start_where_they_can() -> None:
    template = one("Deployment", objects(PLAIN))["spec"]["template"]
    spread = {each["topologyKey"]: each for each in template["spec"]["topologySpreadConstraints"]}
    assert spread.keys() == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    for each in spread.values():
        assert (each["maxSkew"], each["whenUnsatisfiable"]) == (1, "ScheduleAnyway")
        assert each["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), (
            "otherwise it counts no pods"
        )
