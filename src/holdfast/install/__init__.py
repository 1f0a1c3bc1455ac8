"""What an installation on Kubernetes consists of, as objects."""

from .manifests import objects
from .values import Secrets, Values

__all__ = ["Secrets", "Values", "objects"]
