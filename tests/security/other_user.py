"""Acts as another user of this machine, who has no rights in the fleet's files."""

import os
import pwd
from collections.abc import Callable

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_nobody(act: Callable[[], object]) -> str:
    """Returns the result of `act` as text, or the name of its OSError. It runs in a child process that has given up its rights.
    The child is forked, because that user may not be able to execute the tests' interpreter."""
    nobody = pwd.getpwnam("nobody")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            try:
                told = str(act())
            except OSError as error:
                told = type(error).__name__
            os.write(writer, told.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told
