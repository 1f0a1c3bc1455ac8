"""Runs a test cluster until Ctrl-C, so that people can try it: `python -m holdfast_testcluster up` (used by `make kube-up`)."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from holdfast_testcluster import binaries
from holdfast_testcluster.control_plane import ControlPlane
from holdfast_testcluster.kubelet_process import KubeletProcess


def up(nodes: int, hollow: int, images: dict[str, list[str]]) -> None:
    if lacking := binaries.missing():
        sys.exit(lacking)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    folder = Path(tempfile.mkdtemp(prefix="hf-kube-"))
    begun = time.monotonic()
    try:
        with ControlPlane(folder / "control-plane") as plane:
            kubelets = [KubeletProcess(plane, folder / "nodes", nodes=nodes, images=images, options=("--service-env",))]
            if hollow:
                kubelets.append(KubeletProcess(plane, folder / "hollow", nodes=hollow, prefix="hollow", hollow=True))
            for each in kubelets:
                each.start()
            print(_instructions(plane, folder, nodes + hollow, time.monotonic() - begun), flush=True)
            stop.wait()
            print("stopping", flush=True)
            for each in kubelets:
                each.kill()  # killed, because its nodes are not used again
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _instructions(plane: ControlPlane, folder: Path, nodes: int, seconds: float) -> str:
    return f"""\
Kubernetes {binaries.version()} with {nodes} nodes is up after {seconds:.0f} s. In another terminal:

  export KUBECONFIG={plane.kubeconfig}
  export PATH="{binaries.folder()}:$PATH"
  kubectl get nodes
  kubectl run hello --image=any --restart=Never --command -- sh -c 'echo hello from $HOSTNAME'
  kubectl logs hello

Containers are processes of this machine: an image is only a name. Logs are in {folder}. Ctrl-C ends everything."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m holdfast_testcluster")
    parser.add_argument("command", choices=["up"])
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes that run pods as processes")
    parser.add_argument("--hollow", type=int, default=0, help="number of further nodes that only pretend to run pods")
    parser.add_argument("--image", action="append", default=[], metavar="NAME=ARGV", help="what an image runs, ARGV as JSON")
    args = parser.parse_args()
    up(args.nodes, args.hollow, {name: json.loads(argv) for name, argv in (each.split("=", 1) for each in args.image)})


if __name__ == "__main__":
    main()
