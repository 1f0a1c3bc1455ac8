"""The WorkerPool CRD on a real API server accepts and refuses the same specs as the model, and names the wrong field."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.install.manifests import custom_resource
from holdfast.kubernetes.template import Setup
from holdfast.kubernetes.template_checks import problems as template_problems
from holdfast.model.pool import Name, PoolSpec, problems
from holdfast_testcluster.access import Access, Answer
from waiting import eventually

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
_numbers = itertools.count(1)


class Pools:
    """WorkerPools of one namespace, written by the admin."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.access, self.namespace = access, namespace
        self.path = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/workerpools"

    def create(self, spec: Any = None, name: str | None = None, query: str = "fieldValidation=Strict") -> Answer:
        body: Json = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "WorkerPool"}
        body["metadata"] = {"name": f"p{next(_numbers)}" if name is None else name}
        return self.access.request("POST", f"{self.path}?{query}", body if spec is None else body | {"spec": spec})

    def made(self, spec: Any = None, name: str | None = None) -> Json:
        answer = self.create(spec, name)
        assert answer.status == 201, answer.body
        return dict(answer.body)

    def judged(self, spec: Any) -> Answer:
        return self.create(spec, "judged", "fieldValidation=Strict&dryRun=All")

    def patch(self, name: str, body: Json) -> Answer:
        return self.access.request("PATCH", f"{self.path}/{name}", body, kind=MERGE)


@pytest.fixture(scope="module")
def access(control_plane: Access) -> Access:
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(custom_resource()))
    path = "/apis/holdfast.dev/v1alpha1/workerpools"
    eventually(lambda: control_plane.request("GET", path).status == 200, 20, "the CRD is served")
    return control_plane


@pytest.fixture(scope="module")
def pools(access: Access) -> Iterator[Pools]:
    name = access.ask("POST", "/api/v1/namespaces", {"metadata": {"generateName": "crd-"}})["metadata"]["name"]
    yield Pools(access, name)
    access.request("DELETE", f"/api/v1/namespaces/{name}")


def fields(answer: Answer) -> dict[str, str]:
    """Returns the causes of a refusal, by field."""
    return {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}


def without_none(value: Any) -> Any:
    return {key: without_none(each) for key, each in value.items() if each is not None} if isinstance(value, dict) else value


# Defaults


@pytest.mark.parametrize(
    "spec", [None, {}, {"worker": {}, "park": {"ttl": "2m"}}, {"mode": "session", "rollout": {"maxUnavailable": 3}}]
)
def test_defaults_are_the_models(pools: Pools, spec: Any) -> None:
    model = msgspec.convert(spec or {}, PoolSpec)
    assert pools.made(spec)["spec"] == without_none(msgspec.to_builtins(model))


def test_null_is_not_written(pools: Pools) -> None:
    assert pools.made({"warm": None, "claim": None, "park": {"max": None}})["spec"] == pools.made()["spec"]


# Refusals

CONTRADICTIONS: list[Json] = [
    {"warm": 11},
    {"warm": 0, "max": 0, "startTimeout": "0s"},
    {"claim": {"lease": "0s"}},
    {"claim": {"lease": "999ms"}},
    {"claim": {"maxDuration": "0ms"}},
    {"mode": "session", "claim": {"lease": "2m", "maxDuration": "1m"}},
    {"mode": "session", "claim": {"lease": "25h"}},
    {"park": {"maxTTL": "0s", "ttl": "0s"}},
    {"park": {"ttl": "61m"}},
    {"park": {"min": 3, "max": 2}},
    {"worker": {"serve": ["x"]}},
    {"worker": {"listen": "port"}},
    {"mode": "session", "worker": {"run": ["x"]}},
    {"mode": "session", "worker": {"agent": False}},
    {"mode": "session", "network": {"seal": True}},
    {"rollout": {"maxUnavailable": "101%"}},
    {"headroom": {"mode": "constant"}},
    {"drain": {"grace": "8784h1ms"}},
    {"startTimeout": "8785h"},
    {"claim": {"lease": "8785h"}},
    {"claim": {"maxDuration": "8785h"}},
    {"startTimeout": "999999999999999h"},
    *({"park": {"maxTTL": "9000h", "ttl": ttl}} for ttl in ("1s", "8785h")),
]


@pytest.mark.parametrize("spec", CONTRADICTIONS, ids=json.dumps)
def test_a_contradiction_is_refused_at_its_field(pools: Pools, spec: Json) -> None:
    expected = {f"spec.{each.field}": each.reason for each in problems(msgspec.convert(spec, PoolSpec))}
    assert expected, "the model takes this"
    refused = pools.judged(spec)
    assert refused.status == 422, refused.body
    assert expected.keys() <= fields(refused).keys()
    for field, reason in expected.items():
        same = reason in fields(refused)[field]
        assert same or "warm" in field or "year" in reason or reason == "must be longer than 0s", fields(refused)


WRONG_VALUES: list[tuple[str, Json]] = [
    ("spec.mode", {"mode": "batch"}),
    ("spec.warm", {"warm": -1}),
    ("spec.max", {"max": 100_001}),
    ("spec.startTimeout", {"startTimeout": "1d"}),
    ("spec.startTimeout", {"startTimeout": 60}),
    ("spec.silence", {"silence": "kill"}),
    ("spec.worker.port", {"worker": {"port": 0}}),
    ("spec.worker.run", {"worker": {"run": ["x"] * 257}}),
    ("spec.worker.run[0]", {"worker": {"run": ["x" * 32_769]}}),
    ("spec.worker.agent", {"worker": {"agent": "no"}}),
    ("spec.pod", {"pod": []}),
    ("spec.protection.mode", {"protection": {"mode": "on"}}),
    ("spec.rollout.maxUnavailable", {"rollout": {"maxUnavailable": "half"}}),
    ("spec.rollout.maxUnavailable", {"rollout": {"maxUnavailable": -1}}),
    ("spec.headroom.slots", {"headroom": {"slots": -1}}),
    ("spec.network.egress", {"network": {"egress": [{}] * 65}}),
    ("spec.labels[1]", {"labels": ["fine", "x" * 129]}),
]


@pytest.mark.parametrize(("field", "spec"), WRONG_VALUES, ids=[f"{field} {n}" for n, (field, _) in enumerate(WRONG_VALUES)])
def test_a_wrong_value_is_refused_at_its_field(pools: Pools, field: str, spec: Json) -> None:
    assert model_refuses(spec)
    refused = pools.judged(spec)
    assert refused.status == 422, refused.body
    assert field in fields(refused)
    assert not any("conversion error" in message for message in fields(refused).values()), "a rule that could not read it"


def test_an_unknown_field_is_refused_when_asked_and_dropped_otherwise(pools: Pools) -> None:
    assert pools.create({"warn": 3}).status == 400
    kept = pools.create({"warn": 3, "pod": {"spec": {"anything": 1}}}, query="fieldValidation=Warn")
    assert "warn" not in kept.body["spec"]
    assert kept.body["spec"]["pod"] == {"spec": {"anything": 1}}, "only the backend checks the template"


@pytest.mark.parametrize("name", ["a", "a" * 53, "a-b9", "9a", "a" * 54, "a.b", "a-", "-a"])
def test_names_are_those_of_the_model(pools: Pools, name: str) -> None:
    try:
        fine = bool(msgspec.convert(name, Name))
    except msgspec.ValidationError:
        fine = False
    answer = pools.create({}, name, "dryRun=All")
    assert (answer.status == 201) == fine
    assert fine or "metadata.name" in fields(answer)


@pytest.mark.parametrize(
    ("field", "change"), [("spec.mode", {"mode": "session"}), ("spec.worker.agent", {"worker": {"agent": False}})]
)
def test_what_a_pool_is_cannot_change(pools: Pools, field: str, change: Json) -> None:
    name = pools.made()["metadata"]["name"]
    refused = pools.patch(name, {"spec": change})
    assert refused.status == 422
    assert "cannot change" in fields(refused)[field]
    assert pools.patch(name, {"spec": {"max": 20}}).status == 200


def template(**spec: Any) -> Json:
    return {"spec": {"containers": [{"name": "work", "image": "x"}], **spec}}


TOKEN_SOURCE = {"serviceAccountToken": {"path": "t", "audience": "holdfast"}}
OURS = {"metadata": {"labels": {"app.kubernetes.io/name": "holdfast"}}, **template()}
REACHING: list[tuple[str, Json]] = [
    ("spec.pod.spec.hostPID", {"pod": template(hostPID=True)}),
    ("spec.pod.spec.hostNetwork", {"mode": "session", "pod": template(hostNetwork=True)}),
    ("spec.pod.spec.hostIPC", {"mode": "session", "pod": template(hostIPC=True)}),
    ("spec.pod.spec.shareProcessNamespace", {"mode": "session", "pod": template(shareProcessNamespace=True)}),
    ("spec.pod.spec.hostNetwork", {"network": {"seal": True}, "pod": template(hostNetwork=True)}),
    ("spec.pod.metadata.labels", {"pod": OURS}),
    (
        "spec.pod.spec.volumes[0].projected.sources[0].serviceAccountToken.audience",
        {"pod": template(volumes=[{"name": "v", "projected": {"sources": [TOKEN_SOURCE]}}])},
    ),
    *((f"spec.labels[{n}]", {"labels": ["fine", "a\x1b[31m", "a\u202eb", "a\u2028b"]}) for n in (1, 2, 3)),
]


@pytest.mark.parametrize(("field", "spec"), REACHING, ids=[f"{field} {n}" for n, (field, _) in enumerate(REACHING)])
def test_a_template_that_reaches_an_agent_or_our_service_is_refused_with_the_backends_words(
    pools: Pools, field: str, spec: Json
) -> None:
    refused = pools.judged(spec)
    assert refused.status == 422, refused.body
    model = msgspec.convert(spec, PoolSpec)
    theirs = [*problems(model), *(template_problems(model, Setup("one", "i", ())) if "pod" in spec else [])]
    reasons = {f"spec.{each.field}".removesuffix(".app.kubernetes.io/name"): each.reason for each in theirs}
    assert reasons[field] in fields(refused)[field]


def test_a_template_that_reaches_nothing_of_ours_is_accepted_as_it_is(pools: Pools) -> None:
    volumes = [
        {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}, {"odd": {"a": 1}}]}},
        {"name": "w", "secret": {"secretName": "mine"}},
    ]
    pod = template(hostPID=False, hostNetwork=True, volumes=volumes) | {
        "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}}
    }
    assert pools.made({"pod": pod})["spec"]["pod"] == pod


# What people and autoscalers read


def test_kubectl_scale_sets_warm_and_obeys_max(pools: Pools) -> None:
    name = pools.made()["metadata"]["name"]
    pools.access.kubectl("scale", "-n", pools.namespace, "wp", name, "--replicas=4")
    assert pools.access.ask("GET", f"{pools.path}/{name}")["spec"]["warm"] == 4
    printed = pools.access.kubectl("scale", "-n", pools.namespace, "wp", name, "--replicas=11", check=False)
    assert "spec.warm: Invalid value: warm must not exceed max" in printed
    status = {"free": 2, "selector": "holdfast.dev/pool-id=p-1"}
    assert pools.access.request("PATCH", f"{pools.path}/{name}/status", {"status": status}, kind=MERGE).status == 200
    scale = pools.access.ask("GET", f"{pools.path}/{name}/scale")
    assert scale["spec"]["replicas"] == 4
    assert scale["status"] == {"replicas": 2, "selector": "holdfast.dev/pool-id=p-1"}


def test_a_status_is_shown_in_columns_and_changes_no_spec(pools: Pools) -> None:
    made = pools.made({"warm": 3})
    name = made["metadata"]["name"]
    condition = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "", "observedGeneration": 1}
    conditions = [{"type": "Ready", "status": "False", "reason": "ImagePull", **condition}]
    status = {"free": 1, "held": 2, "waiting": 4, "oldestWaitingSeconds": 31, "conditions": conditions}
    body = {"status": status, "spec": {"warm": 9}}
    updated = pools.access.request("PATCH", f"{pools.path}/{name}/status", body, kind=MERGE).body
    assert (updated["spec"], updated["metadata"]["generation"]) == (made["spec"], 1)
    lines = pools.access.kubectl("get", "-n", pools.namespace, "wp", name, "-o", "wide").splitlines()
    assert lines[0].split() == ["NAME", "MODE", "WARM", "FREE", "HELD", "WAITING", "READY", "REASON", "AGE"]
    assert lines[1].split()[:8] == [name, "job", "3", "1", "2", "4", "False", "ImagePull"]
    short = pools.access.kubectl("get", "-n", pools.namespace, "wp", name).splitlines()[0]
    assert "REASON" not in short


def test_two_conditions_of_one_type_are_refused(pools: Pools) -> None:
    name = pools.made()["metadata"]["name"]
    ready = {"type": "Ready", "status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = {"status": {"conditions": [ready, ready]}}
    assert pools.access.request("PATCH", f"{pools.path}/{name}/status", body, kind=MERGE).status == 422


# The model and the CRD agree about any input

DURATIONS = st.one_of(
    st.sampled_from(
        ["0s", "999ms", "1s", "1000ms", "1m", "1h", "24h", "24h1ms", "25h", "8784h", "8784h1ms", "10000h", "527041m"]
    ),
    st.sampled_from(
        ["", "1", "s", "1d", "1 s", "1s\n", "-1s", "1.5s", "٣s", "1S", "9" * 31 + "h", "0" * 31 + "s", "0" * 32 + "s"]
    ),
    st.sampled_from(["31622400000ms", "31622400001ms", "999999999999ms", "1000000ms", 60, True]),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["s", "m", "h"])), min_size=1, max_size=4).map(
        lambda parts: "".join(f"{number}{unit}" for number, unit in parts)
    ),
)
COUNTS = st.one_of(st.integers(0, 12), st.sampled_from([-1, 99_999, 100_000, 100_001, 1.5, "3", True]))
FLAGS = st.sampled_from([True, False, "true", 1])
ARGV = st.sampled_from([[], ["x"], ["x", ""], ["x"] * 256, ["x"] * 257, "x", [1], {}])
RULES = st.sampled_from([[], [{}], [{"to": [{"podSelector": {}}]}], [{}] * 65, ["x"], {}])


def choice(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def part(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Builds few fields per example, because otherwise every example would be wrong in ten ways."""
    names = st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: optional[name] for name in chosen}))


SPECS = part(
    mode=choice("job", "job", "session", "session", "batch", 1),
    warm=COUNTS,
    max=COUNTS,
    startTimeout=DURATIONS,
    silence=choice("alert", "retire", "off"),
    worker=part(
        run=ARGV, serve=ARGV, activate=ARGV, reset=ARGV, port=choice(0, 1, 65_535, 65_536, "80"), agent=FLAGS, image=FLAGS
    ),
    pod=choice({}, {"spec": {"containers": []}}, {"x": None}, [], "x"),
    claim=part(lease=DURATIONS, maxDuration=DURATIONS),
    park=part(ttl=DURATIONS, maxTTL=DURATIONS, min=COUNTS, max=COUNTS),
    protection=part(mode=choice("claim", "always", "off", "on", False), required=FLAGS),
    drain=part(grace=DURATIONS),
    rollout=part(
        maxUnavailable=choice(0, 5, 100_000, 100_001, -1, "0", "99999", "100000", "25%", "100%", "101%", "00100%", "%", "", 1.5)
    ),
    headroom=part(mode=choice("off", "constant", "demand"), slots=COUNTS),
    network=part(seal=FLAGS, egress=RULES, ingress=RULES),
    labels=choice([], ["linux"], ["x" * 128], ["x" * 129], ["é" * 128], ["x"] * 64, ["x"] * 65, [1], "x"),
    unknown=FLAGS,
)


def model_refuses(spec: Json) -> str | None:
    try:
        found = problems(msgspec.json.decode(json.dumps(spec), type=PoolSpec))
    except msgspec.ValidationError as error:
        return str(error)
    return f"{found[0].field}: {found[0].reason}" if found else None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(spec=SPECS)
def test_the_api_server_and_the_model_agree(pools: Pools, spec: Json) -> None:
    answer = pools.judged(spec)
    assert answer.status in (201, 400, 422), answer.body
    why = model_refuses(spec)
    assert (answer.status != 201) == (why is not None), (why, answer.body.get("message"))


def test_what_both_take_comes_to_the_same(pools: Pools) -> None:
    """The defaults of the CRD are those of the model, also beside fields that were written."""
    seen: list[Json] = []

    @settings(max_examples=40, deadline=None, database=None)
    @given(spec=SPECS)
    def compare(spec: Json) -> None:
        if model_refuses(spec) is None:
            model = msgspec.to_builtins(msgspec.convert(spec, PoolSpec))
            kept = pools.judged(spec).body["spec"]
            assert {**kept, "pod": {}} == {**without_none(model), "pod": {}}
            seen.append(kept)

    compare()
    assert seen
