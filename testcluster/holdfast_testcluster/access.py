"""Access to a running test cluster as admin: requests, kubectl, kubeconfigs. It reads everything from the cluster's folder."""

import http.client
import json
import os
import ssl
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast_testcluster import binaries

JSON = "application/json"
MERGE = "application/merge-patch+json"


class Answer(NamedTuple):
    status: int
    body: Any  # decoded JSON, or text if it is not JSON; for a watch that has ended, the list of its events


class Access:
    """Any process that knows the folder of a control plane can use it. Only its `ControlPlane` object can stop it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.kubeconfig = folder / "admin.kubeconfig"

    @cached_property
    def url(self) -> str:
        return (self.folder / "url").read_text().strip()

    @cached_property
    def token(self) -> str:
        """Returns the token of the admin, who is in the group `system:masters`."""
        return (self.folder / "admin.token").read_text().strip()

    # Requests

    def request(self, method: str, path: str, body: Any = None, kind: str = JSON, token: str | None = None) -> Answer:
        """Sends one request to the API server as the admin, or as the user of the token. Returns the answer with any status."""
        host = self.url.removeprefix("https://")
        connection = http.client.HTTPSConnection(host, timeout=30, context=self._tls)
        try:
            headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind, "Accept": JSON}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            raw = response.read()
            return Answer(response.status, _decoded(raw, response.getheader("Content-Type") or "", lines="watch=" in path))
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Any:
        """Sends a request like `request`, and fails unless it succeeds. Returns the body of the answer."""
        answer = self.request(method, path, body, kind)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    # Tools

    def kubectl(self, *args: str, input: str | None = None, kubeconfig: Path | None = None, check: bool = True) -> str:
        """Returns the output of kubectl. With `check=False` a failure is allowed, and the errors are returned as well."""
        done = subprocess.run(
            [str(binaries.path("kubectl")), *args],
            input=input,
            capture_output=True,
            text=True,
            env=self.kubectl_env(kubeconfig),
        )
        assert done.returncode == 0 or not check, f"kubectl {' '.join(args)}: {done.stderr or done.stdout}"
        return done.stdout if check else done.stdout + done.stderr

    def kubectl_env(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """Returns the environment for kubectl. With it, kubectl neither reads nor writes the user's own configuration."""
        private = {"KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.folder), "KUBERC": "off"}
        return {"PATH": f"{binaries.folder()}:{os.environ['PATH']}", **private}

    def kubeconfig_for(self, token: str, name: str, namespace: str = "default") -> Path:
        """Writes a kubeconfig for the user of the token to `<name>.kubeconfig` in the folder, and returns its path."""
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name, "namespace": namespace}}],
            "current-context": name,
        }
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        path.chmod(0o600)
        return path

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600, audiences: tuple[str, ...] = ()) -> str:
        """Returns a token from a TokenRequest. The ServiceAccount must exist."""
        spec = {"expirationSeconds": seconds, "audiences": list(audiences)}
        at = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.ask("POST", at, {"spec": spec})["status"]["token"]
        return token

    def service_account_kubeconfig(self, namespace: str, name: str, seconds: int = 3600) -> Path:
        """Returns a kubeconfig with the rights of this ServiceAccount."""
        return self.kubeconfig_for(self.service_account_token(namespace, name, seconds), f"{namespace}.{name}", namespace)


def _decoded(raw: bytes, content_type: str, lines: bool) -> Any:
    if not content_type.startswith(JSON):
        return raw.decode(errors="replace")
    return [json.loads(line) for line in raw.splitlines()] if lines else json.loads(raw)
