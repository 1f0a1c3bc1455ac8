"""Puts a mutant into a process that has loaded the product already: the functions keep their identity and get other code."""

import importlib.util
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


def swap(path: str, code: str, scope: str) -> bool:
    """Gives the loaded function `scope` of a module the code that it has in the mutant. Returns whether that was possible; if not
    (a decorator hides the function), the module has to be loaded again in another process."""
    name = ".".join(Path(path).with_suffix("").parts[1:])
    loaded = sys.modules.get(name)
    if loaded is None:
        return True  # a later import, here or in a process that a test starts, reads the mutant from its file
    old = _function(loaded, scope)
    if old is None:
        return False
    new = _function(_load(loaded, code), scope)
    if new is None or old.__code__.co_freevars != new.__code__.co_freevars:
        return False
    old.__code__ = new.__code__
    old.__defaults__ = new.__defaults__
    old.__kwdefaults__ = new.__kwdefaults__
    return True


def _load(loaded: ModuleType, code: str) -> ModuleType:
    """Returns the mutant as a separate module, which no other code can import."""
    mutant = ModuleType(loaded.__name__)
    spec = importlib.util.find_spec(loaded.__name__)
    assert spec is not None
    mutant.__spec__, mutant.__package__, mutant.__file__ = spec, loaded.__package__, loaded.__file__
    sys.modules[loaded.__name__] = mutant  # `dataclass` looks its module up by name
    try:
        exec(compile(code, loaded.__file__ or "mutant", "exec"), mutant.__dict__)
    finally:
        sys.modules[loaded.__name__] = loaded
    return mutant


def _function(module: ModuleType, scope: str) -> FunctionType | None:
    """Returns the function of this dotted name, below its decorators. For an inner function, it returns the outer one."""
    found: Any = module
    for name in scope.split("."):
        found = vars(found).get(name)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        while hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        if isinstance(found, FunctionType):
            return found if found.__module__ == module.__name__ else None
        if not isinstance(found, type):
            return None
    return None
