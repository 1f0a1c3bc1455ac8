"""`apply` refuses wrong manifests with the line, the path and the reason, before it sends anything."""

from pathlib import Path

import pytest
from cli_results import Cli
from fake_holdfast import FakeHoldfast

POOL = """apiVersion: holdfast.dev/v1alpha1
kind: WorkerPool
metadata: {name: linux}
spec:
  warm: 1
  protection: {mode: off}
"""


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        (("warm: 1", "worm: 1"), 5, "spec.worm: is not a field of this object; did you mean 'warm'?"),
        (("warm: 1", "warm: many"), 5, "spec.warm: must be a whole number from 0 to 100000, not text"),
        (("warm: 1", "warm: 11"), 5, "spec.warm: warm (11) must not exceed max (10)"),
        (("warm: 1", "worker: {serve: [sh, 7]}"), 5, "spec.worker.serve[1]: must be text, not a whole number"),
        (("warm: 1", "worker: {sevre: []}"), 5, "spec.worker.sevre: is not a field of this object; did you mean 'serve'?"),
        (("warm: 1", "warm: 1\n  warm: 2"), 6, "not YAML: key 'warm' appears twice"),
        (("mode: off", "mode: of"), 6, "spec.protection.mode: must be 'always', 'claim' or 'off'; did you mean 'off'?"),
        (("kind: WorkerPool", "kind: Pod"), 2, "kind: unknown kind 'Pod'; known: WorkerPool, Tenant"),
        (("name: linux", "name: Linux!"), 3, "metadata.name: must be a DNS label such as linux-large"),
        (("{name: linux}", "{name: linux, labels: {}}"), 3, "metadata.labels: is not a field of this object"),
        (("v1alpha1", "v2"), 1, "apiVersion: expected holdfast.dev/v1alpha1, not 'holdfast.dev/v2'"),
        (("spec:", "spce:"), 4, "spce: is not a field of this object; did you mean 'spec'?"),
        (("{name: linux}", "{name: linux"), 4, "not YAML: "),
    ],
)
def test_a_mistake_is_refused_with_line_path_and_reason(
    cli: Cli, server: FakeHoldfast, tmp_path: Path, change: tuple[str, str], line: int, complaint: str
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL.replace(*change))
    result = cli("apply", "-f", str(file))
    assert result.code == 1
    assert f"{file}:{line}: {complaint}" in result.err
    assert result.err.count("\n") == 1
    assert server.pools == {}


def test_a_mistake_in_the_last_document_changes_nothing(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(f"{POOL}---\n{POOL.replace('linux', 'other').replace('warm', 'worm')}")
    result = cli("apply", "-f", str(file))
    assert f"{file}:12: spec.worm" in result.err
    assert server.log == []


def test_all_mistakes_of_all_documents_are_shown_at_once(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    first = POOL.replace("warm: 1", "worm: 1\n  startTimeout: soon").replace("mode: off", "mode: of")
    file.write_text(f"{first}---\n{POOL.replace('linux', 'other').replace('WorkerPool', 'WorkerPol')}")
    result = cli("apply", "-f", str(file))
    assert result.code == 1
    assert result.err.splitlines() == [
        f"holdfast: {file}:5: spec.worm: is not a field of this object; did you mean 'warm'?",
        f"{file}:6: spec.startTimeout: must be a duration such as 500ms, 60s, 10m or 1h30m",
        f"{file}:7: spec.protection.mode: must be 'always', 'claim' or 'off'; did you mean 'off'?",
        f"{file}:10: kind: unknown kind 'WorkerPol'; did you mean 'WorkerPool'?",
    ]
    assert server.log == []


def test_a_mistake_in_each_of_two_files_is_shown_at_once(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL.replace("warm", "worm"))
    (tmp_path / "b.yaml").write_text(POOL.replace("mode", "mood"))
    result = cli("apply", "-f", "a.yaml", "-f", "b.yaml")
    assert (result.code, server.log) == (1, [])
    assert "a.yaml:5: spec.worm: is not a field of this object" in result.err
    assert "b.yaml:6: spec.protection.mood: is not a field of this object" in result.err


def test_the_same_object_in_two_files_is_refused_with_both_places(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL)
    (tmp_path / "b.yaml").write_text(f"# the same pool\n{POOL}")
    result = cli("apply", "-f", "a.yaml", "-f", "b.yaml")
    assert (result.code, server.log) == (1, [])
    assert result.err == "holdfast: b.yaml:4: WorkerPool 'linux' appears twice; it is also in a.yaml:3\n"
    assert "b.yaml:4" in cli("apply", "-f", ".").err


def test_standard_input_twice_and_a_folder_without_manifests_are_refused(cli: Cli, server: FakeHoldfast, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli("apply", "-f", "-", "-f", "-").code == 2
    result = cli("apply", "-f", "empty")
    assert (result.code, "empty: the folder contains no file that ends with .yaml" in result.err) == (1, True)
    assert server.log == []
