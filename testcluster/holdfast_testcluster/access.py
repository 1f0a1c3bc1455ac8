"""A running test cluster as its admin sees it: requests, kubectl, kubeconfigs. All of it comes from the files in its folder."""

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
    body: Any  # decoded JSON, or text where it is none; of a watch that ended, the list of its events


class Access:
    """Anybody who knows the folder of a control plane can use it; only its `ControlPlane` can stop it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.kubeconfig = folder / "admin.kubeconfig"

    @cached_property
    def url(self) -> str:
        return (self.folder / "url").read_text().strip()

    @cached_property
    def token(self) -> str:
        """The admin's, who is in `system:masters`."""
        return (self.folder / "admin.token").read_text().strip()

    # Requests

    def request(self, method: str, path: str, body: Any = None, kind: str = JSON, token: str | None = None) -> Answer:
        """One request to the API server as the admin, or as whoever the token belongs to; any status is an answer."""
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
        """The same where only success will do."""
        answer = self.request(method, path, body, kind)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body}"
        return answer.body

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    # Tools

    def kubectl(self, *args: str, input: str | None = None, kubeconfig: Path | None = None, check: bool = True) -> str:
        """What kubectl printed; with `check=False` also its errors, whatever it ended with."""
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
        """For whoever runs kubectl in another way; nothing of the person's own set-up is read or written."""
        private = {"KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.folder), "KUBERC": "off"}
        return {"PATH": f"{binaries.folder()}:{os.environ['PATH']}", **private}

    def kubeconfig_for(self, token: str, name: str, namespace: str = "default") -> Path:
        """A kubeconfig for whoever the token belongs to, as `<name>.kubeconfig` in the folder."""
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
        """By TokenRequest; the ServiceAccount must exist."""
        spec = {"expirationSeconds": seconds, "audiences": list(audiences)}
        at = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.ask("POST", at, {"spec": spec})["status"]["token"]
        return token

    def service_account_kubeconfig(self, namespace: str, name: str, seconds: int = 3600) -> Path:
        """What a program that runs as this ServiceAccount would have."""
        return self.kubeconfig_for(self.service_account_token(namespace, name, seconds), f"{namespace}.{name}", namespace)


def _decoded(raw: bytes, content_type: str, lines: bool) -> Any:
    if not content_type.startswith(JSON):
        return raw.decode(errors="replace")
    return [json.loads(line) for line in raw.splitlines()] if lines else json.loads(raw)
