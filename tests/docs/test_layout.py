"""Tests are sorted by subject: a folder is a package of the product or a known subject, and no file has a number as its name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Subjects that belong to no single package. bench and net contain the tests of the folders bench/ and mutation/.
SUBJECTS = {"bench", "contracts", "docs", "e2e", "fuzz", "kube_demo", "net", "security", "soak", "testcluster"}


def test_each_folder_is_a_package_of_the_product_or_a_known_subject() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("*.py"))}
    packages = {path.name for path in (ROOT / "src" / "holdfast").iterdir() if path.is_dir()}
    assert folders - packages - SUBJECTS == set()


def test_no_file_is_named_by_a_number() -> None:
    files = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 100
    assert [name for name in files if re.search(r"_\d{2,}", name)] == []


def test_no_two_files_have_one_name() -> None:
    """Test modules are imported by their base name, so one of two equal names would hide the other."""
    files = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(files) == sorted(set(files))
