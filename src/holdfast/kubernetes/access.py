"""Find the API server's address and our credentials, in a kubeconfig or in the pod's service account."""

import asyncio
import contextlib
import json
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import UserExec
from lightkube.core.exceptions import ConfigError

from ..ports.cluster import ClusterUnavailable, NoCluster

TOKEN_SECONDS = 60.0  # how often a token file is read again, because projected tokens are rotated; also after a 401
PLUGIN_SECONDS = 30.0  # a plugin that calls a service is done by then; a plugin that waits for a person never is
PLUGIN_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))


class CredentialStatus(msgspec.Struct, frozen=True):
    token: str


class ExecCredential(msgspec.Struct, frozen=True):
    """The JSON that a plugin prints."""

    status: CredentialStatus


@dataclass
class Access:
    """One API server and one identity. The repr does not contain the credentials."""

    server: str
    tls: ssl.SSLContext = field(repr=False)
    namespace: str
    _config: SingleConfig = field(repr=False)
    _token: str | None = field(default=None, repr=False)
    _read_at: float = 0.0

    async def headers(self, *, refused: bool = False) -> dict[str, str]:
        """Returns the authorization header. `refused` means that the API server did not accept the last one."""
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
                self._token = await _token_from_plugin(user.exec)
            return self._token
        return None


async def _token_from_plugin(plugin: UserExec) -> str:
    """Returns a token from an exec plugin, called as kubectl calls it. Neither its output nor its error text is repeated, because
    both may contain a secret. (We do not use lightkube's own code, because it refuses v1, which every current kubeconfig has.)"""
    info = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, **{each.name: each.value for each in plugin.env or ()}, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    name = f"the kubeconfig's exec plugin {Path(plugin.command).name!r}"
    nothing = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *(plugin.args or ()), env=env, stdin=nothing, stdout=asyncio.subprocess.PIPE, stderr=nothing
        )
    except OSError as error:
        raise ClusterUnavailable(f"{name} cannot be started: {type(error).__name__}") from None
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise ClusterUnavailable(f"{name} did not answer within {PLUGIN_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise ClusterUnavailable(f"{name} ended with exit code {process.returncode}; run it by hand to see why")
    try:
        return msgspec.json.decode(printed, type=ExecCredential).status.token
    except msgspec.MsgspecError:
        raise ClusterUnavailable(f"{name} printed no credential with a token") from None


def find_access(kubeconfig: Path | None = None, context: str | None = None) -> Access:
    """Returns access from the named file, $KUBECONFIG, the service account of our pod, or ~/.kube/config, in this order."""
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig is not None else KubeConfig.from_env()
        config = found.get(context)
    except (ConfigError, OSError) as error:
        raise NoCluster(f"no Kubernetes configuration: {error}") from None
    if config is None:
        raise NoCluster("the kubeconfig names no current context; name one with --context")
    if config.user is not None and config.user.username:
        raise NoCluster("user names and passwords are not supported; use a token, a certificate or an exec plugin")
    if config.user is not None and config.user.exec is not None and config.user.exec.apiVersion not in PLUGIN_VERSIONS:
        raise NoCluster(
            f"exec plugins of {config.user.exec.apiVersion} are not supported; use one of {', '.join(PLUGIN_VERSIONS)}"
        )
    tls = verify_cluster(config.cluster, config.user, config.abs_file)  # type: ignore[arg-type]
    return Access(config.cluster.server.rstrip("/"), tls, config.namespace, config)
