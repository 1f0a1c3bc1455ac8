"""The Kubernetes fixtures, for the parts of the benchmark that need a control plane."""

from kube.fixtures import *  # noqa: F403
