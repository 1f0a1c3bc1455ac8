"""Sessions at their limits: lost leases, open connections, parking, resets."""

import http.client
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from fleet import SERVE, SESSION, Fleet, eventually
from holdfast.local.process import send
from waiting import Deadline

Make = Callable[..., Fleet]

# Prints its name, then a line per second forever. A lost lease must cut this open connection.
STREAM = """
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
        while True:
            self.wfile.write(b"5\\r\\nalive\\r\\n"); self.wfile.flush(); time.sleep(0.2)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def test_a_holder_whose_lease_ran_out_cannot_reach_the_worker_though_its_connection_was_open(make_fleet: Make) -> None:
    spec = {**SESSION, "claim": {"lease": "3s"}, "worker": {"listen": "port", "serve": ["python3", "-c", STREAM]}}
    fleet = make_fleet(replicas=2, pools={"stream": spec})
    claim = fleet.claim("stream", tenant="acme", wait="30s")
    host, port = claim["endpoint"].removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    request = f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {claim['credential']}\r\n\r\n"
    connection.sendall(request.encode())
    assert b"alive" in connection.recv(65536) + connection.recv(65536)
    deadline = Deadline(25)
    received = 0
    try:
        while chunk := connection.recv(65536):
            received += len(chunk)
            assert not deadline.over(), "the connection is still open"
    except ConnectionResetError:
        pass
    assert received > 0
    ended = fleet.see(claim["id"])
    assert (ended["state"], ended["outcome"]) == ("ended", "expired")
    again = http.client.HTTPConnection(host, int(port), timeout=30)
    again.request("GET", "/", headers={"Authorization": f"Bearer {claim['credential']}"})
    assert again.getresponse().status == 401


def test_a_vanished_holder_loses_its_claim_and_the_worker_is_parked_for_its_tenant(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"notebook": {**SESSION, "claim": {"lease": "2s"}}})
    claim = fleet.claim("notebook", tenant="acme", wait="30s")
    ended = fleet.see(claim["id"], wait="15s")
    assert ended["outcome"] == "expired"
    parked = eventually(lambda: [w for w in fleet.workers("parked") if w["ready"]], 15)
    assert (parked[0]["id"], parked[0]["tenant"]) == (claim["worker"], "acme")


def test_a_parked_worker_goes_when_its_ttl_is_over_and_a_renewal_does_not_move_it(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"notebook": {**SESSION, "park": {"ttl": "3s"}}})
    claim = fleet.claim("notebook", tenant="acme", wait="30s")
    fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})
    since = eventually(lambda: fleet.workers("parked"), 10)[0]["parked_since"]
    late = fleet.api("POST", f"/v1/claims/{claim['id']}/renew", {"fence": claim["fence"]})
    assert late.status == 409
    state = lambda: fleet.api("GET", f"/v1/workers/{claim['worker']}").json  # noqa: E731
    shown = state()
    assert shown["state"] != "parked" or shown["parked_since"] == since
    eventually(lambda: state()["state"] == "gone", 25)
    eventually(lambda: not fleet.processes(claim["worker"]), 10)


def test_a_failed_reset_retires_the_worker(make_fleet: Make) -> None:
    spec = {**SESSION, "worker": {"listen": "port", "serve": SERVE, "reset": ["false"]}}
    fleet = make_fleet(replicas=1, pools={"dirty": spec})
    claim = fleet.claim("dirty", tenant="acme", wait="30s")
    fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"fence": claim["fence"]})
    eventually(lambda: fleet.api("GET", f"/v1/workers/{claim['worker']}").json["state"] == "gone", 25)
    again = fleet.claim("dirty", tenant="acme", wait="30s")
    assert again["worker"] != claim["worker"]


def test_force_needs_a_reason_and_leaves_it_in_the_history(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=1, pools={"notebook": SESSION})
    claim = fleet.claim("notebook", tenant="acme", wait="30s")
    refused = fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"force": True})
    assert (refused.status, refused.json["errors"][0]["field"]) == (422, "reason")
    forced = fleet.api("POST", f"/v1/claims/{claim['id']}/release", {"force": True, "reason": "security roll"})
    assert forced.json["outcome"] == "released"
    history = fleet.api("GET", f"/v1/events?claim={claim['id']}").json["items"]
    assert "security roll" in json.dumps(history)


def test_a_served_process_that_dies_closes_its_port_and_its_claim_is_lost(make_fleet: Make) -> None:
    fleet = make_fleet(replicas=2, pools={"notebook": SESSION})
    claim = fleet.claim("notebook", tenant="acme", wait="30s")
    agent = fleet.agent_of(claim["worker"])
    served = [process for process in fleet.processes(claim["worker"]) if _serves(process.pid)]
    assert served, "the served process is found"
    assert agent.pid not in {process.pid for process in served}
    for process in served:
        send(process, signal.SIGKILL)
    ended = fleet.see(claim["id"], wait="20s")
    assert (ended["state"], ended["outcome"]) == ("ended", "lost")
    eventually(lambda: fleet.api("GET", f"/v1/workers/{claim['worker']}").json["state"] == "gone", 20)
    again = fleet.claim("notebook", tenant="acme", wait="40s")
    assert (again["state"], again["worker"] != claim["worker"]) == ("active", True)


def _serves(pid: int) -> bool:
    return b"http.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
