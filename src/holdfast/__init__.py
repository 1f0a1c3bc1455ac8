"""Fleets of warm workers: one holder each, never killed while busy, never leaked while idle."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Returns `holdfast.claim` or another name of the client. The client is imported on first use, because `import holdfast`
    must not load an HTTP library."""
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    # `from . import` does not work here: it calls this function again while a submodule of the client is being loaded.
    return getattr(import_module("holdfast.client"), name)
