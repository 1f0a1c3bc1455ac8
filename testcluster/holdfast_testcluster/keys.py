"""Makes the keys and certificates of a test cluster with openssl, so that no Python package is needed for them."""

import subprocess
from pathlib import Path

DAYS = "30"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch")
NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"


def make_authority(folder: Path) -> None:
    """Writes `ca.crt` and `ca.key`."""
    _openssl(
        *("req", "-x509", *KEY, "-days", DAYS, "-subj", "/CN=holdfast test cluster"),
        *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )


def make_server(folder: Path, name: str) -> None:
    """Writes `<name>.crt` and `<name>.key` for loopback, signed by the authority in the folder."""
    _openssl(
        *(
            "req",
            "-x509",
            *KEY,
            "-days",
            DAYS,
            "-subj",
            f"/CN={name}",
            "-CA",
            str(folder / "ca.crt"),
            "-CAkey",
            str(folder / "ca.key"),
        ),
        *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")),
        *("-addext", NAMES, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth"),
    )


def make_signing_key(folder: Path, name: str) -> None:
    """Writes the pair of keys for ServiceAccount tokens: `<name>.key` signs them, `<name>.pub` verifies them."""
    private, public = str(folder / f"{name}.key"), str(folder / f"{name}.pub")
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", private)
    _openssl("pkey", "-in", private, "-pubout", "-out", public)


def _openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], capture_output=True, text=True)
    assert done.returncode == 0, f"openssl {args[0]}: {done.stderr}"
