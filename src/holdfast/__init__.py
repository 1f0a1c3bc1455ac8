"""Fleets of warm workers: one holder each, never killed while busy, never leaked while idle."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`holdfast.claim` and the other names of the client, loaded when first used: an import must not cost an HTTP library."""
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    # Not `from . import`, which asks us for the name again when a submodule of it is being loaded.
    return getattr(import_module("holdfast.client"), name)
