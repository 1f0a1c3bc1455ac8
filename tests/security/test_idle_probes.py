"""Strangers hold idle connections to the probe port, so that the kubelet's probe fails and the replica is restarted."""

from running_loop import running
from strangers import connect, crowd, is_open, read_answer

from holdfast.api import descriptors, probes
from holdfast.api.probes import Probes


def ask(port: int, path: str) -> int:
    with connect(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        return read_answer(connection)[0]


def test_liveness_is_answered_while_a_thousand_idle_connections_are_held() -> None:
    descriptors.raise_limit()
    with running() as do:
        made = Probes(lambda: True)
        port = do(made.listen("127.0.0.1", 0))
        with crowd(port, 1000) as connections:
            for _ in range(3):
                assert ask(port, "/healthz") == 200
                assert ask(port, "/readyz") == 200
            assert sum(is_open(each) for each in connections) <= probes.MOST_CONNECTIONS
        made.close()
