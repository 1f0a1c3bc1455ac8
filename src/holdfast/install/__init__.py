"""Build the objects of an installation on Kubernetes."""

from .manifests import objects
from .values import Secrets, Values

__all__ = ["Secrets", "Values", "objects"]
