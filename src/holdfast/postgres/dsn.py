"""Check a DSN before it is used, and name the server that it leads to. No text here contains a part of the DSN that is secret."""

import os
import re
import socket
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

SCHEMES = ("postgresql", "postgres")
DEFAULT_PORT = "5432"
EXAMPLE = "postgresql://user:password@host:5432/database"

# Postgres answered and refused us. Another try has the same result until an operator changes the DSN or the server's rights.
REFUSALS = (
    asyncpg.exceptions.InvalidAuthorizationSpecificationError,  # an unknown user or a wrong password
    asyncpg.exceptions.InvalidCatalogNameError,  # the database does not exist
    asyncpg.exceptions.InsufficientPrivilegeError,
)


class WrongDsn(Exception):
    """The DSN is malformed, or its server refuses it. The message says why, and never contains the password."""


def server_of(dsn: str) -> str:
    """Returns the hosts and ports of a DSN, such as `db.example:5432`. Raises WrongDsn if the DSN is malformed."""
    hosts, ports = _read(dsn)
    if len(ports) not in (1, len(hosts)):
        raise WrongDsn(f"it has {len(hosts)} hosts and {len(ports)} ports; give one port, or one per host")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ", ".join(map(_place, hosts, ports))


def _read(dsn: str) -> tuple[list[str], list[str]]:
    # The scheme is not repeated in the message, because a DSN without a scheme may begin with its password.
    if not dsn.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise WrongDsn(f"it must begin with postgresql://, as in {EXAMPLE}")
    try:
        parts = urlsplit(dsn)
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise WrongDsn(f"it cannot be read as a URL; write it as {EXAMPLE}, with %XX for special characters") from None
    login, _, address = parts.netloc.rpartition("@")
    if "#" in dsn or "@" in login or "@" in parts.path or "@" in parts.query.partition("=")[0]:
        raise WrongDsn("in the user's name and the password, write %40 for @, %2F for /, %3F for ?, %23 for #")
    found = [_host_and_port(each) for each in address.split(",")] if address else []
    if not found:
        given = options.get("host", [os.environ.get("PGHOST", "")])[-1]
        found = [_host_and_port(each) for each in given.split(",")] if given else [("localhost", "")]
    hosts = [host for host, _ in found]
    if not all(hosts):
        raise WrongDsn(f"it names no host before the port; write it as {EXAMPLE}")
    if any(port for _, port in found):
        ports = [port or DEFAULT_PORT for _, port in found]
    else:
        ports = options.get("port", [os.environ.get("PGPORT", DEFAULT_PORT)])[-1].split(",")
    for port in ports:
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            # The port is not repeated, because it is the rest of a password that contains a colon or a slash.
            raise WrongDsn(f"its port is not a number from 1 to 65535; write it as {EXAMPLE}")
    return hosts, ports


def _host_and_port(text: str) -> tuple[str, str]:
    text = unquote(text)
    if text.startswith("/"):
        return text, ""  # the folder of a Unix socket
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


def _place(host: str, port: str) -> str:
    if host.startswith("/"):
        return f"{host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reason_of(error: BaseException) -> str:
    """Returns why no connection was made, in the words of the operating system. Of other errors it returns only the type,
    because their text may contain what users sent."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return error.strerror or "the host's name is not known"
    if isinstance(error, OSError):
        # asyncio joins the errors of a host with several addresses into one error that has no number of its own.
        numbers = [error.errno] if error.errno else map(int, re.findall(r"\[Errno (\d+)\]", str(error)))
        return " or ".join(dict.fromkeys(map(os.strerror, numbers))) or type(error).__name__
    return type(error).__name__
