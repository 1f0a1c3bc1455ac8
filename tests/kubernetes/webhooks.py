"""Admission webhooks for every new pod of a namespace: one denies, one cannot be reached."""

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast_testcluster import keys
from holdfast_testcluster.access import Access
from waiting import eventually

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "pods.policy.example.com"


class Denies(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "no pods on Mondays"}}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def denying(folder: Path) -> Iterator[int]:
    """Starts a webhook that denies everything, and yields its port."""
    keys.make_server(folder, "hook")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Denies)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def unreachable(_: Path) -> Iterator[int]:
    """Yields a port on which no process listens. It is kept reserved, so that no other process can use it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def hooked(access: Access, namespace: str, folder: Path, port: int) -> Iterator[None]:
    """Registers the webhook at this port for every new pod of this namespace only."""
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    hook = {
        "name": NAME,
        "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": authority},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
    }
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "work", "image": "x"}]}}
    probe = lambda: access.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod).status  # noqa: E731
    access.ask("POST", HOOKS, {"metadata": {"name": namespace}, "webhooks": [hook]})
    try:
        eventually(lambda: probe() >= 400, 30, "the webhook is in force")
        yield
    finally:
        access.ask("DELETE", f"{HOOKS}/{namespace}")
