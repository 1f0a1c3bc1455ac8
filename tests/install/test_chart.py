"""The chart passes lint, checks its values, and installs the same objects that `holdfast manifests` prints."""

import json
from base64 import b64decode
from typing import Any

import pytest
import yaml

from holdfast import __version__
from holdfast.install import Secrets, Values, objects
from holdfast.kubernetes.rights import CLUSTER, NAMESPACED, rules
from install.helm import CHART, REPO, helm, refusal, render, text, want_helm

Json = dict[str, Any]
POOLS = "workerpools.holdfast.dev"
THROW_AWAY = "postgres.throwAway.enabled=true"
# The same installation in two forms: release, namespace and values of the chart, and the values of `holdfast manifests`.
DB = "postgres.dsnSecret=db"
IN_NAMESPACE = r"namespaceSelector.matchLabels.kubernetes\.io/metadata\.name"
SAME = {
    "plain": (("holdfast", "holdfast", DB), Values(namespace="holdfast", dsn_secret="db")),
    "to try": (
        ("holdfast", "trial", THROW_AWAY, "postgres.throwAway.image=pg:1"),
        Values(namespace="trial", try_postgres="pg:1"),
    ),
    "another": (
        ("release", "ci", DB, "install=blue", "postgres.pooled=true", "replicas=3", "image=there/hf@sha256:1"),
        Values(namespace="ci", dsn_secret="db", install="blue", pooled=True, replicas=3, image="there/hf@sha256:1"),
    ),
    "alone": (
        ("solo", "ns", DB, "replicas=1"),
        Values(namespace="ns", dsn_secret="db", install="solo", replicas=1),
    ),
    "second in its cluster": (
        ("holdfast", "b", DB, "crds.install=false", "priorityClasses.install=false", "imagePullSecrets={x,y}"),
        Values(namespace="b", dsn_secret="db", crd=False, priority_classes=False, pull_secrets=("x", "y")),
    ),
    "in one namespace": (
        ("holdfast", "ns", DB, "workers.namespace=ns"),
        Values(namespace="ns", dsn_secret="db", workers_namespace="ns"),
    ),
    "in namespaces that exist": (
        ("holdfast", "ns", DB, "workers.namespace=fleet", "workers.createNamespace=false"),
        Values(namespace="ns", dsn_secret="db", workers_namespace="fleet", make_namespace=False),
    ),
    "for privileged builds": (
        ("holdfast", "ns", DB, "workers.podSecurity=privileged", "networkPolicy.enabled=false"),
        Values(namespace="ns", dsn_secret="db", pod_security="privileged", network_policy=False),
    ),
    "reached from elsewhere": (
        (
            "holdfast",
            "ns",
            DB,
            f"networkPolicy.peers[0].{IN_NAMESPACE}=monitoring",
            f"networkPolicy.peers[1].{IN_NAMESPACE}=apps",
        ),
        Values(namespace="ns", dsn_secret="db", clients=("monitoring", "apps")),
    ),
    "watched": (
        ("holdfast", "m", DB, "metrics.enabled=true", "priorityClasses.preemption=PreemptLowerPriority"),
        Values(namespace="m", dsn_secret="db", metrics=True, preemption="PreemptLowerPriority"),
    ),
    "watched with a token of an admin's": (
        ("holdfast", "m", DB, "metrics.enabled=true", "metrics.tokenSecret=prom"),
        Values(namespace="m", dsn_secret="db", metrics=True, metrics_secret="prom"),
    ),
}


@pytest.fixture(autouse=True)
def _helm() -> None:
    want_helm()


def by_name(found: list[Json]) -> dict[tuple[str, str], Json]:
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found), "an object appears twice"
    return named


@pytest.mark.parametrize("name", SAME)
def test_chart_and_manifests_are_the_same_installation(name: str) -> None:
    chart_values, values = SAME[name]
    chart, printed = by_name(render(*chart_values, "keys.create=false")), by_name(objects(values))
    assert chart.keys() == printed.keys()
    for each in printed:
        assert chart[each] == printed[each], each


def test_the_secrets_differ_only_in_what_was_made_up() -> None:
    values = Values(namespace="trial", try_postgres="postgres:17", metrics=True, secrets=Secrets.fresh())
    charts, printed = by_name(render("holdfast", "trial", THROW_AWAY, "metrics.enabled=true")), by_name(objects(values))
    assert charts.keys() == printed.keys()
    for name in ("holdfast-keys", "holdfast-postgres", "holdfast-metrics"):
        one, other = charts["Secret", name], printed["Secret", name]
        assert one["data"].keys() == other["data"].keys()
        one["metadata"].get("annotations", {}).pop("helm.sh/resource-policy", None)
        one["metadata"] = {key: value for key, value in one["metadata"].items() if value}
        assert {**one, "data": {}} == {**other, "data": {}}
    made = charts["Secret", "holdfast-keys"]["data"]
    assert len(b64decode(made["key"])) == 32
    assert b64decode(made["token"]).startswith(b"hf_")
    assert len(b64decode(made["token"])) >= 46
    assert charts["Secret", "holdfast-metrics"]["data"]["token"] != made["token"], "never the admin's"
    database = {name: b64decode(value).decode() for name, value in charts["Secret", "holdfast-postgres"]["data"].items()}
    assert database["dsn"] == f"postgresql://holdfast:{database['password']}@holdfast-postgres.trial.svc:5432/holdfast"
    again = by_name(render("holdfast", "trial", THROW_AWAY))
    assert again["Secret", "holdfast-keys"]["data"]["key"] != made["key"]


def test_the_chart_grants_the_rights_of_the_table() -> None:
    chart = by_name(render("holdfast", "ns", DB))
    assert chart["Role", "holdfast"]["rules"] == rules(NAMESPACED, "holdfast")
    assert chart["ClusterRole", "holdfast:ns:holdfast"]["rules"] == rules(CLUSTER, "holdfast")


@pytest.mark.parametrize("values", [(), (THROW_AWAY, "metrics.enabled=true"), ("postgres.dsnSecret=x", "replicas=1")])
def test_lint_finds_nothing(values: tuple[str, ...]) -> None:
    settings = [part for value in values for part in ("--set", value)]
    done = helm("lint", "--strict", str(CHART), *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_the_files_that_both_use_are_the_same() -> None:
    for name in ("crd.yaml", "alerts.yaml"):
        ours = REPO / "src" / "holdfast" / "install" / name
        assert (CHART / "files" / name).read_text() == ours.read_text(), f"cp {ours.relative_to(REPO)} charts/holdfast/files/"


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


# Values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("replica=3", "replica"),
        ("postgres.dsn=x", "dsn"),
        ("crds.enabled=true", "enabled"),
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("install=Blue", "install"),
        ("install=default", "install"),
        ("priorityClasses.preemption=Always", "preemption"),
        ("resources.request.cpu=1", "request"),
        ("postgres.dsnSecret=A_B", "dsnSecret"),
        ("workers.namespace=A_B", "namespace"),
        ("workers.podSecurity=none", "podSecurity"),
        ("networkPolicy.peers[0].podselector.x=y", "podselector"),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, expected: str) -> None:
    refused = refusal(DB, value)
    assert "values don't meet the specifications of the schema" in refused
    assert expected in refused


def test_a_postgres_is_needed_and_only_one() -> None:
    assert "postgres.dsnSecret: name the Secret" in refusal()
    assert "not both" in refusal(DB, THROW_AWAY)


def test_a_release_that_cannot_name_an_installation_is_refused() -> None:
    assert "must be a-z" in refusal(DB, release="default")
    assert "must be a-z" in refusal(DB, release="a.b")
    assert render("a.b", "ns", DB, "install=fine")


def test_the_schema_knows_every_value_and_lets_no_other_pass() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def walk(found: Json, expected: Json, at: str) -> None:
        assert expected.get("additionalProperties") is False, at
        assert found.keys() == expected["properties"].keys() - {"global"}, at
        for name, value in found.items():
            below = expected["properties"][name]
            if isinstance(value, dict) and "properties" in below:
                walk(value, below, f"{at}.{name}")

    walk(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


# Texts


def test_the_throw_away_postgres_is_marked_as_such() -> None:
    found = [each for each in render("holdfast", "trial", THROW_AWAY) if each["metadata"]["name"] == "holdfast-postgres"]
    assert {each["kind"] for each in found} == {"Secret", "Service", "StatefulSet"}
    assert all("holdfast.dev/throw-away" in each["metadata"]["annotations"] for each in found)
    notes = helm("install", "holdfast", str(CHART), "--dry-run=client", "--namespace", "trial", "--set", THROW_AWAY).stdout
    assert "FOR TRYING OUT ONLY" in notes


def test_the_crd_outlives_the_chart() -> None:
    crd = by_name(render("holdfast", "ns", DB))["CustomResourceDefinition", POOLS]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "$labels" in text("holdfast", "ns", DB, "metrics.enabled=true")  # the templates of alerts are not evaluated by Helm
