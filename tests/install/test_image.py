"""Checks the text of the Dockerfile, because no Docker daemon is there to build it."""

import re
import shlex

from holdfast.install import replicas
from holdfast.kubernetes.template import RESTRICTED
from install.helm import REPO


def instructions() -> list[tuple[str, str]]:
    text = (REPO / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(instruction, rest) for instruction, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def last(instruction: str) -> str:
    return [rest for each, rest in instructions() if each == instruction][-1]


def stages() -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == "FROM"]


def test_it_is_built_in_one_stage_and_runs_in_another() -> None:
    assert stages() == ["python:3.11-slim AS build", "python:3.11-slim"]
    assert "--from=build /opt/holdfast /opt/holdfast" in [rest for instruction, rest in instructions() if instruction == "COPY"]


def test_the_image_runs_as_the_user_of_the_installation() -> None:
    assert last("USER") == f"{replicas.USER}:{replicas.USER}" == f"{RESTRICTED['runAsUser']}:{RESTRICTED['runAsGroup']}"
    assert last("ENTRYPOINT") == '["holdfast"]'
    assert {int(port) for port in last("EXPOSE").split()} == {replicas.PORT, replicas.PROBES}
    assert "PATH=/opt/holdfast/bin:$PATH" in shlex.split(last("ENV"))  # agents are started as `python -m holdfast.agent`
    assert "PYTHONDONTWRITEBYTECODE=1" in shlex.split(last("ENV"))


def test_nothing_is_installed_but_by_the_lock() -> None:
    commands = [part for instruction, rest in instructions() if instruction == "RUN" for part in rest.split("&&")]
    installs = [part for part in commands if "install --no-cache" in part]
    assert len(installs) == 3
    assert all("--require-hashes" in part or "requirements.lock" in part for part in installs)
    assert "uv==" in (REPO / "requirements.lock").read_text()


def test_every_file_that_is_copied_is_let_through() -> None:
    ignore = (REPO / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    passed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        name
        for instruction, rest in instructions()
        if instruction == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }
    assert copied == passed
    assert all((REPO / name).exists() for name in copied)
