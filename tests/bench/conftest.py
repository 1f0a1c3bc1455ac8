"""The Kubernetes fixtures for the parts of the benchmark that need a control plane."""

from holdfast_testcluster.fixtures import *  # noqa: F403
