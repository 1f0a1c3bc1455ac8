"""Every operation of the OpenAPI document, with generated requests: what is documented is what happens.

The document is made from the same table that is served; test_doors.py proves that /openapi.json is it.
"""

from typing import Any

import pytest
import schemathesis
from door_stage import Stage
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from holdfast import __version__
from holdfast.api.app import DOORS
from holdfast.api.openapi import document

schemathesis.specs.openapi.unregister_string_format if False else None

ORDINARY = schemathesis.openapi.from_dict(document([d for d in DOORS if not d.path.startswith("/v1/worker/")], __version__))
AGENTS = schemathesis.openapi.from_dict(document([d for d in DOORS if d.path.startswith("/v1/worker/")], __version__))
