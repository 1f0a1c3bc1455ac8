"""How a worker's pod is built: images that are pulled before it is warm, which containers get a token, forbidden fields."""

from typing import Any

import msgspec
import pytest

from holdfast.kubernetes import names
from holdfast.kubernetes.template import NOOP, Setup, manifest
from holdfast.kubernetes.template_checks import problems
from holdfast.model.pool import Pool, PoolSpec, WorkerSpec, revision_of
from holdfast.ports.cluster import Order

SETUP = Setup("one", "holdfast:test", ("http://x",))
MODES = ["job", "session"]


def spec_of(pod: dict[str, Any], mode: str = "job", agent: bool = True) -> PoolSpec:
    return PoolSpec(mode=mode, worker=WorkerSpec(agent=agent), pod={"spec": pod})  # type: ignore[arg-type]


def made(pod: dict[str, Any], mode: str = "job", agent: bool = True) -> dict[str, Any]:
    spec = spec_of(pod, mode, agent)
    assert problems(spec, SETUP) == []
    pool = Pool(id="p-1", name="linux", spec=spec, revision=revision_of(spec), state="live", source="api", created_at=0.0)
    made: dict[str, Any] = manifest(Order(worker="w-1", pool=pool, epoch=3), SETUP, "anchor")["spec"]
    return made


def user(name: str, image: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, **more}


def pulled(pod: dict[str, Any]) -> list[str]:
    """Returns the images of containers that run before the agent, so that these images are on the node by then."""
    inits = [each["name"] for each in pod["initContainers"]]
    before = pod["initContainers"][: inits.index(names.AGENT)]
    assert len(set(inits)) == len(inits)
    return [each["image"] for each in before if each["command"] == [NOOP]]


# Images


def test_every_image_of_a_jobs_template_is_pulled_once_before_its_agent_starts() -> None:
    containers = [user("work", "work:1"), user("db", "db:1"), user("same", "work:1"), user("cache", "cache:1")]
    pod = made({"containers": containers, "initContainers": [user("own", "own:1", command=["true"])]})
    assert pulled(pod) == ["work:1", "db:1", "cache:1"]
    assert [each["image"] for each in pod["initContainers"]][:2] == ["own:1", SETUP.agent_image], "its own have run by then"
    assert pod["initContainers"][-1]["name"] == names.AGENT


def test_a_sessions_own_image_runs_before_it_is_warm_and_the_others_are_pulled() -> None:
    assert pulled(made({"containers": [user("work", "work:1"), user("db", "db:1")]}, "session")) == ["db:1"]
    alone = made({"containers": [user("work", "work:1"), user("same", "work:1")]}, "session")
    assert [each["name"] for each in alone["initContainers"]] == [names.AGENT]


def test_an_image_is_pulled_as_its_container_would() -> None:
    own = {"imagePullPolicy": "Always", "securityContext": {"runAsUser": 7}, "resources": {"requests": {"cpu": "1"}}}
    pod = made({"containers": [user("work", "work:1"), user("db", "db:1", **own)]})
    pull = pod["initContainers"][2]
    assert {key: pull[key] for key in own} == own


# Tokens


@pytest.mark.parametrize("mode", MODES)
def test_only_the_agent_is_given_a_token(mode: str) -> None:
    containers = [user("work", "work:1"), user("db", "db:1")]
    pod = made({"containers": containers, "initContainers": [user("own", "own:1", command=["true"])]}, mode)
    assert pod["automountServiceAccountToken"] is False
    tokens = {each["name"] for each in pod["volumes"] if "projected" in each or "secret" in each}
    assert tokens == {names.TOKEN_VOLUME}
    every = [*pod["initContainers"], *pod["containers"]]
    holders = [each["name"] for each in every if any(m["name"] in tokens for m in each.get("volumeMounts", []))]
    assert holders == [names.AGENT]


def test_an_agentless_pod_is_its_users_with_no_token_and_nothing_of_ours() -> None:
    pod = made({"containers": [user("work", "work:1", command=["serve"])]}, agent=False)
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"] == [user("work", "work:1", command=["serve"])]
    assert not pod.get("volumes")
    assert not pod.get("initContainers")


# Refusals

RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"containers": [user("work", "w:1")], "restartPolicy": "OnFailure"}, "pod.spec.restartPolicy"),
        ({"containers": [user("work", "w:1", restartPolicy="Always")]}, "pod.spec.containers[0].restartPolicy"),
        (
            {"containers": [user("work", "w:1", restartPolicy="Never", restartPolicyRules=[RULE])]},
            "pod.spec.containers[0].restartPolicy",
        ),
        (
            {
                "containers": [
                    user("work", "w:1"),
                    user("db", "d:1", restartPolicyRules=[{**RULE, "action": "RestartAllContainers"}]),
                ]
            },
            "pod.spec.containers[1].restartPolicyRules",
        ),
        ({"containers": ["work"]}, "pod.spec.containers"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_template_that_would_run_a_worker_twice_is_refused(pod: dict[str, Any], field: str, mode: str) -> None:
    assert [problem.field for problem in problems(spec_of(pod, mode), SETUP)] == [field]


def test_containers_beside_the_worker_may_be_restarted() -> None:
    beside = user("db", "d:1", restartPolicy="Always")
    assert problems(spec_of({"containers": [user("work", "w:1"), beside]}), SETUP) == []


@pytest.mark.parametrize(("listen", "fields"), [("socket", ["worker.listen"]), ("isolated", ["worker.listen"]), ("port", [])])
def test_a_served_container_listens_on_its_port_only(listen: Any, fields: list[str]) -> None:
    spec = spec_of({"containers": [user("work", "w:1")]}, "session")
    listening = msgspec.structs.replace(spec, worker=msgspec.structs.replace(spec.worker, listen=listen))
    assert [problem.field for problem in problems(listening, SETUP)] == fields


@pytest.mark.parametrize("mode", ["session", "job"])
def test_no_container_may_see_the_agents_process(mode: str) -> None:
    """An init container of a job's template may run beside the agent."""
    pod = {"containers": [user("work", "w:1")], "shareProcessNamespace": True}
    assert [problem.field for problem in problems(spec_of(pod, mode), SETUP)] == ["pod.spec.shareProcessNamespace"]


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_a_container_that_would_read_what_is_the_agents_own_is_refused(part: str) -> None:
    nosy = user("nosy", "n:1", volumeMounts=[{"name": "mine", "mountPath": "/m"}, {"name": "holdfast-token", "mountPath": "/t"}])
    first = [user("work", "w:1")]
    pod = {"containers": first, **({part: [*first, nosy]} if part == "containers" else {part: [nosy]})}
    n = 1 if part == "containers" else 0
    assert [problem.field for problem in problems(spec_of(pod), SETUP)] == [f"pod.spec.{part}[{n}].volumeMounts[1].name"]
