"""What the documents refer to exists: tests that prove a row, metrics of alerts, decisions."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.metrics import Metrics

ROOT = Path(__file__).parents[2]


def cited(document: Path) -> Iterator[tuple[str, str]]:
    """Yields file and name of each test that a document names: a file in backticks, followed by its tests."""
    file = ""
    for text in re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8")):
        if text.endswith(".py"):
            file = text.removeprefix("tests/")
        elif text.startswith("test_"):
            yield file, text


@pytest.mark.parametrize("name", ["docs/failure-table.md", "ARCHITECTURE.md"])
def test_every_test_that_is_cited_exists(name: str) -> None:
    found = list(cited(ROOT / name))
    assert len(found) > 20
    missing = [
        f"{file}: {test}"
        for file, test in found
        if not (ROOT / "tests" / file).is_file() or f"def {test}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8")
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["docs/operations.md", "docs/runbooks.md", "CHANGELOG.md"])
def test_every_metric_that_an_alert_or_a_runbook_names_is_exported(name: str) -> None:
    exported = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in Metrics().registry.collect()}
    named = set(re.findall(r"\bholdfast_[a-z_]+", (ROOT / name).read_text(encoding="utf-8")))
    assert named - exported == set()


def test_every_link_to_a_document_leads_somewhere() -> None:
    broken = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert broken == []
