"""The Python files that are mutated, and the tests that judge each of them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A file or a folder of the product. Its tests run in this order and stop at the first failure, so quick ones come first."""

    path: str
    tests: tuple[str, ...]


PLANS = ("tests/duties/test_numbers.py", "tests/duties/test_numbers_as_documented.py")
VALUES = ("tests/duties/test_actions_are_values.py",)
CASES = (
    "tests/duties/test_converge_twins.py",
    "tests/duties/test_converge_ends.py",
    "tests/duties/test_converge_strangers.py",
    "tests/duties/test_converge_cases.py",
    "tests/recovery/test_compare.py",
    "tests/recovery/test_compare_exactly.py",
    "tests/duties/test_converge_reads.py",
    "tests/duties/test_converge.py",
)

HAND_OVERS = tuple(f"tests/postgres/test_store_{about}.py" for about in ("rush", "turns", "protection"))

STATES = ("tests/agent/test_agent_states.py", "tests/agent/test_agent_directives.py", "tests/agent/test_agent_job_loop.py")
LOOP = ("tests/agent/test_session_loop.py", "tests/agent/test_session_restart.py")  # a whole agent in the test's process

# A file is judged by the first line that names it or one of its folders.
TARGETS = (
    Target("src/holdfast/duties/cases.py", (*PLANS, *CASES, "tests/duties/test_converge_on_store.py")),
    Target("src/holdfast/recovery/marks.py", ("tests/recovery/test_marks_in_time.py", "tests/recovery/test_marks.py")),
    Target("src/holdfast/recovery/actions.py", (*VALUES, "tests/recovery/test_recovery_actions.py", *CASES)),
    Target("src/holdfast/recovery", (*PLANS, "tests/recovery/test_compare*.py", *CASES, "tests/recovery/test_marks.py")),
    Target("src/holdfast/claimpath/batcher.py", ("tests/claimpath/test_batcher.py", "tests/claimpath/test_submit.py")),
    Target("src/holdfast/claimpath/signals.py", ("tests/claimpath/test_signals.py", "tests/claimpath/test_wait_step.py")),
    Target("src/holdfast/claimpath", ("tests/claimpath", *HAND_OVERS)),
    Target("src/holdfast/duties/converge.py", (*PLANS, *CASES, "tests/duties/test_converge_on_store.py")),
    Target("src/holdfast/duties/observed.py", ("tests/duties/test_small_duties.py", *CASES)),
    Target("src/holdfast/duties/deadlines.py", (*PLANS, "tests/duties/test_deadlines.py")),
    Target("src/holdfast/duties/scale.py", (*PLANS, "tests/duties/test_scale*.py")),
    Target("src/holdfast/duties/pools.py", ("tests/duties/test_pools*.py", *PLANS)),
    Target("src/holdfast/duties/actions.py", (*CASES, "tests/duties")),
    Target("src/holdfast/duties/pool_actions.py", ("tests/duties/test_pools*.py", *CASES)),
    Target("src/holdfast/duties", (*PLANS, "tests/duties")),
    Target("src/holdfast/model", ("tests/model",)),
    Target(
        "src/holdfast/api/auth.py", ("tests/api/test_auth*.py", "tests/api/test_agent_tokens.py", "tests/api/test_whole_api.py")
    ),
    Target("src/holdfast/agent/config.py", ("tests/agent/test_agent_settings.py",)),
    Target("src/holdfast/agent/control.py", ("tests/agent/test_agent_control.py", "tests/agent/test_agent_answers.py", *STATES)),
    Target("src/holdfast/agent/job.py", ("tests/agent/test_agent_files.py", "tests/agent/test_agent_groups.py", *STATES)),
    Target("src/holdfast/agent/process.py", ("tests/agent/test_agent_files.py", "tests/agent/test_agent_groups.py", *STATES)),
    Target("src/holdfast/agent/http.py", ("tests/agent/test_agent_http.py", "tests/agent/test_agent_connections.py", *STATES)),
    Target("src/holdfast/agent/messages.py", ("tests/agent/test_agent_http.py",)),
    Target("src/holdfast/agent/proxy_headers.py", ("tests/agent/test_proxy_headers.py",)),
    Target("src/holdfast/agent/proxy.py", ("tests/agent/test_proxy_re*.py",)),
    Target("src/holdfast/agent/memory.py", ("tests/agent/test_memory.py", *LOOP)),
    Target("src/holdfast/agent/staging.py", ("tests/agent/test_agent_staging.py",)),
    Target("src/holdfast/agent/noop.py", ("tests/agent/test_agent_staging.py",)),
    Target("src/holdfast/agent/session.py", ("tests/agent/test_served.py", *LOOP)),
    Target("src/holdfast/agent/sessions.py", LOOP),
    Target("src/holdfast/agent/main.py", (*STATES, *LOOP, "tests/agent/test_agent_job.py")),
    Target("src/holdfast/agent/activation.py", ("tests/agent/test_agent_parts.py", "tests/agent/test_agent_files.py", *STATES)),
    Target("src/holdfast/agent/__main__.py", ("tests/agent/test_agent_start.py", "tests/agent/test_agent_job.py")),
    Target("src/holdfast/agent", ("tests/agent/test_agent_parts.py", *STATES)),
)


def target_of(path: str) -> Target:
    for target in TARGETS:
        if path == target.path or path.startswith(f"{target.path}/"):
            return target
    raise SystemExit(f"no tests are named for {path}: add it to mutation/python_targets.py")


def files(root: Path, only: str | None) -> list[str]:
    """Returns the files of the targets in the table's order; with `only`, those whose path contains one of its words."""
    found: dict[str, None] = {}
    for target in TARGETS:
        path = root / target.path
        if not path.exists():
            raise SystemExit(f"{target.path} does not exist: correct mutation/python_targets.py")
        each = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found |= dict.fromkeys(str(one.relative_to(root)) for one in each)
    return [path for path in found if only is None or any(word in path for word in only.split(","))]


def tests_of(root: Path, target: Target) -> list[str]:
    """Returns the test files of a target, each once, with patterns and folders resolved."""
    found: dict[str, None] = {}
    for pattern in target.tests:
        matches = sorted(root.glob(pattern))
        if not matches:
            raise SystemExit(f"{pattern} judges {target.path} and does not exist: correct mutation/python_targets.py")
        each = [test for match in matches for test in (sorted(match.rglob("test_*.py")) if match.is_dir() else [match])]
        found |= dict.fromkeys(str(one.relative_to(root)) for one in each)
    return list(found)
