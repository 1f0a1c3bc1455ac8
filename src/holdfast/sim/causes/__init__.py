"""How each fault is caused: one module per part of the world, and one table with all of them."""

from .cause import Cause
from .people import PEOPLE
from .pods import PODS
from .replicas import REPLICAS
from .store import STORE
from .weather import WEATHER

CAUSES: dict[str, Cause] = {**REPLICAS, **STORE, **WEATHER, **PODS, **PEOPLE}
