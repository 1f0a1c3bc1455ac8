"""Reads the manifests of several files, folders and standard input as one whole."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .connection import CommandFailed
from .manifest import Manifest, WrongManifest, doubles, read

ENDINGS = (".yaml", ".yml", ".json")  # files of a folder that are read; JSON is also YAML


def read_all(names: Sequence[str]) -> list[Manifest]:
    """Returns the manifests of all files. Refuses them as a whole, with one line per mistake, if one of them is wrong or if two
    are about the same object."""
    if names.count("-") > 1:
        raise CommandFailed("-f -: standard input can be read only once", 2)
    found: list[Manifest] = []
    wrong: list[str] = []
    for name in names:
        for file, text in _texts(name):
            try:
                found += read(text, file)
            except WrongManifest as refused:
                wrong.append(str(refused))
    if wrong := wrong or doubles(found):
        raise CommandFailed("\n".join(wrong))
    return found


def _texts(name: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of the file, or of each file directly in the folder, in the order of their names."""
    try:
        if name == "-":
            yield "stdin", sys.stdin.read()
        elif not Path(name).is_dir():
            yield name, Path(name).read_text(encoding="utf-8")
        else:
            files = sorted(path for path in Path(name).iterdir() if path.suffix in ENDINGS and path.is_file())
            if not files:
                raise CommandFailed(f"{name}: the folder contains no file that ends with {', '.join(ENDINGS)}")
            for path in files:
                yield str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{name}: is not UTF-8 text") from None
