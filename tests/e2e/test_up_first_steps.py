"""A person starts an empty fleet in a folder, on any port, and follows the steps that `up` prints."""

import os
import subprocess
import sys

from test_up import Machine, machine  # noqa: F401 - a fixture

from waiting import eventually


def typed(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:  # noqa: F811
    """Runs a command in the machine's folder, without a server in its environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")} | {"HOME": str(machine.home)}
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, cwd=machine.home, env=env, capture_output=True, text=True, timeout=300)


def test_a_person_follows_the_steps_of_an_empty_fleet_on_another_port(machine: Machine) -> None:  # noqa: F811
    machine.data = machine.home / ".holdfast"
    with machine.log.open("wb") as log:
        machine.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "up", "--port", str(machine.port)],
            cwd=machine.home, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    eventually(lambda: "doctor" in machine.log.read_text() or machine._died(), 60, "up prints what to try")
    steps = [line.strip() for line in machine.log.read_text().split("Try in another terminal:")[1].splitlines() if line.strip()]
    assert "It has no pools yet." in machine.log.read_text()
    assert [step.split("holdfast ", 1)[1].split("#")[0].strip() for step in steps] == [
        "init", "apply -f holdfast.yaml", "get pools", "top", "doctor",
    ]  # fmt: skip
    for step in ("init", "apply -f holdfast.yaml", "get pools", "top --once"):
        done = typed(machine, *step.split())
        assert done.returncode == 0, (step, done.stderr)
    assert "jobs" in typed(machine, "get", "pools").stdout
    assert typed(machine, "run", "--pool", "jobs", "--", "echo", "hello").stdout == "hello\n"
    claim = typed(machine, "claim", "--pool", "sessions", "--wait", "60s").stdout
    line = next(line.split(":", 1)[1].strip() for line in claim.splitlines() if line.startswith("try:"))
    answer = subprocess.run(["sh", "-c", f"{line} --silent --fail"], capture_output=True, text=True, timeout=60)
    assert "Directory listing" in answer.stdout, (line, answer.stderr)
