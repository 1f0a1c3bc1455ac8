"""Apply an installation to a real API server, for the tests that need one."""

from typing import Any

import yaml

from holdfast_testcluster.access import Access

Json = dict[str, Any]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workerpools.holdfast.dev"


def apply(access: Access, found: list[Json] | str) -> str:
    text = found if isinstance(found, str) else yaml.safe_dump_all(found)
    return access.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)


def pool_object() -> Json:
    return {"apiVersion": "holdfast.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "linux"}}


def spec_of(crd: Json) -> Json:
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema
