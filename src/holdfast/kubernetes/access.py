"""Where the API server is and how we prove who we are: a kubeconfig, or the pod's own account."""

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.config.client_adapter import ExecAuth, async_check_output, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from ..ports.cluster import NoCluster

TOKEN_SECONDS = 60.0  # a projected token is rotated below us: read again so often, and at once after a 401


@dataclass
class Access:
    """One API server and one identity. The credentials are no part of the repr."""

    server: str
    tls: ssl.SSLContext = field(repr=False)
    namespace: str
    _config: SingleConfig = field(repr=False)
    _token: str | None = field(default=None, repr=False)
    _read_at: float = 0.0

    async def headers(self, *, refused: bool = False) -> dict[str, str]:
        """`refused`: the API server did not accept what we sent last."""
        token = await self._bearer(refused)
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _bearer(self, refused: bool) -> str | None:
        user = self._config.user
        if user is None:
            return None
        if user.token_file is not None:
            if refused or self._token is None or time.monotonic() - self._read_at > TOKEN_SECONDS:
                file = Path(self._config.abs_file(user.token_file))
                self._token = (await asyncio.to_thread(file.read_text)).strip()
                self._read_at = time.monotonic()
            return self._token
        if user.token is not None:
            return user.token
        if user.exec is not None:
            if refused or self._token is None:
                command, env = ExecAuth(user.exec)._prepare()
                self._token = json.loads(await async_check_output(command, env=env))["status"]["token"]
            return self._token
        return None


def find_access(kubeconfig: Path | None = None, context: str | None = None) -> Access:
    """The named file, $KUBECONFIG, the account of the pod that we run in, or ~/.kube/config: in this order."""
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig is not None else KubeConfig.from_env()
        config = found.get(context)
    except (ConfigError, OSError) as error:
        raise NoCluster(f"no Kubernetes configuration: {error}") from None
    if config is None:
        raise NoCluster("the kubeconfig names no current context; name one with --context")
    if config.user is not None and config.user.username:
        raise NoCluster("user names and passwords are not supported; use a token, a certificate or an exec plugin")
    tls = verify_cluster(config.cluster, config.user, config.abs_file)  # type: ignore[arg-type]
    return Access(config.cluster.server.rstrip("/"), tls, config.namespace, config)
