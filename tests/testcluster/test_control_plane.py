"""The control plane of the test cluster can be stopped, paused and compacted, and never outlives its run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cluster_pods import SHARED, STAY, VOLUME, Pods, container, exit_code, lives, running
from holdfast_testcluster import binaries
from holdfast_testcluster.access import Access
from holdfast_testcluster.control_plane import ControlPlane
from holdfast_testcluster.keeper import HERE
from holdfast_testcluster.kubelet_process import KubeletProcess
from waiting import eventually

JOINS = """
import pathlib, sys
from holdfast_testcluster.keeper import shared_control_plane
with shared_control_plane(pathlib.Path(sys.argv[1])) as access:
    print(access.folder, flush=True)
    sys.stdin.read()
"""


def test_what_happens_while_the_api_server_is_down_is_reported_after(
    own_control_plane: ControlPlane, make_namespace: Callable[[Access], str], make_nodes: Callable[..., KubeletProcess]
) -> None:
    plane = own_control_plane
    namespace = make_namespace(plane)
    nodes, pods = make_nodes(plane, namespace), Pods(plane, namespace)
    script = "until [ -e /run/shared/go ]; do sleep 0.05; done; exit 5"
    uid = pods.create("job", container("main", script, **SHARED), **VOLUME)
    pid = running(pods, nodes, "job", uid)

    plane.stop_apiserver()
    with pytest.raises(OSError, match="refused"):
        plane.request("GET", "/readyz")
    assert lives(pid)
    (nodes.volume(uid, "shared") / "go").touch()
    eventually(lambda: not lives(pid), what="end of the job")
    plane.start_apiserver()
    assert exit_code(pods.until_phase("job", "Failed"), "main") == 5

    # The history is lost, also for the kubelet's watch, which lists again.
    old = pods.access.ask("GET", pods.path)["metadata"]["resourceVersion"]
    pods.create("makes-it-old", container("main", STAY))
    plane.expire_watches()
    (event,) = plane.ask("GET", f"{pods.path}?watch=1&resourceVersion={old}")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    pods.create("after", container("main", "true"))
    pods.until_phase("after", "Succeeded")

    plane.pause_apiserver()
    assert _answers(plane) is False
    plane.resume_apiserver()
    assert _answers(plane) is True


def test_a_service_account_has_the_rights_it_was_given(control_plane: Access, namespace: str) -> None:
    eventually(lambda: control_plane.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default").status == 200)
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "default")
    assert control_plane.kubectl("auth", "can-i", "list", "pods", kubeconfig=kubeconfig, check=False).startswith("no")
    control_plane.kubectl(
        *("-n", namespace, "create", "rolebinding", "view", "--clusterrole=view", f"--serviceaccount={namespace}:default")
    )
    eventually(lambda: control_plane.kubectl("auth", "can-i", "list", "pods", kubeconfig=kubeconfig, check=False) == "yes\n")
    assert control_plane.kubectl("auth", "can-i", "delete", "pods", kubeconfig=kubeconfig, check=False).startswith("no")


def test_a_shared_control_plane_is_one_and_ends_with_its_last_user(control_plane: Access, tmp_path: Path) -> None:
    del control_plane  # requested only so that this test is skipped together with the others
    first, second = _join(tmp_path), _join(tmp_path)
    folder = _told_folder(first)
    assert _told_folder(second) == folder
    parts = [each for each in psutil.process_iter(["cmdline"]) if folder in " ".join(each.info["cmdline"] or [])]
    assert len(parts) == 5  # the keeper and four programs
    first.kill()
    first.wait()
    answer = Access(Path(folder)).request("GET", "/readyz")
    assert answer.body == "ok"
    second.kill()  # killed, so that it cannot close its connection itself
    second.wait()
    eventually(lambda: not any(lives(each.pid) for each in parts), within=10, what="end of all of it")
    eventually(lambda: not Path(folder).exists(), within=10, what="no folder")


def test_missing_programs_are_named_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("HOLDFAST_KUBE_CACHE", str(tmp_path))
    assert "make kube" in (binaries.missing() or "")
    for name in binaries.NAMES:
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.missing() is None
    (tmp_path / "kube-scheduler").unlink()  # missing, as in the assets that other projects publish
    assert "kube-scheduler" in (binaries.missing() or "")


def _answers(plane: ControlPlane) -> bool:
    command = [str(binaries.path("kubectl")), "get", "--raw=/readyz", "--request-timeout=1s"]
    return subprocess.run(command, env=plane.kubectl_env(), capture_output=True).returncode == 0


def _join(base: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", JOINS, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
    )


def _told_folder(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()
