"""Makes a pod's volumes as folders: emptyDir, projected (with tokens by TokenRequest), configMap, secret, downwardAPI."""

import asyncio
import base64
import os
import time
from pathlib import Path
from typing import Any

from holdfast_testcluster.api import Api, Object
from holdfast_testcluster.fields import field_of

REFRESH_AT = 0.8  # part of a token's lifetime after which it is renewed, as a kubelet does


class VolumeProblem(Exception):
    """The volume cannot be made now, because something that it needs does not exist, or its kind is not supported."""


class Volumes:
    def __init__(self, api: Api, pod: Object, address: str, folder: Path) -> None:
        self._api, self._pod, self._address, self._folder = api, pod, address, folder
        self._namespace: str = pod["metadata"]["namespace"]
        self._tokens: list[tuple[Object, Path, float]] = []  # source, file, time of the renewal (monotonic seconds)

    def path(self, name: str) -> Path:
        return self._folder / name

    async def make(self) -> None:
        """Makes all volumes. It can be called again after a `VolumeProblem`."""
        for volume in self._pod["spec"].get("volumes") or []:
            place = self.path(volume["name"])
            if not place.exists():
                place.mkdir(parents=True)
                place.chmod(0o777)
            if "emptyDir" not in volume:
                for name, content in (await self._files(volume, place)).items():
                    write(place / name, content)

    async def refresh_tokens(self) -> None:
        """Renews tokens until cancelled."""
        while self._tokens:
            source, file, due = min(self._tokens, key=lambda each: each[2])
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._tokens.remove((source, file, due))
            try:
                write(file, await self._token(source, file))
            except VolumeProblem:  # the pod is being deleted, or the API server has a problem
                self._tokens.append((source, file, time.monotonic() + 1))

    async def _files(self, volume: Object, place: Path) -> dict[str, bytes]:
        if "projected" in volume:
            files: dict[str, bytes] = {}
            for source in volume["projected"]["sources"]:
                files |= await self._source(source, place)
            return files
        if "secret" in volume:  # its fields have other names than in a projection
            secret = volume["secret"]
            return await self._source({"secret": {**secret, "name": secret["secretName"]}}, place)
        return await self._source(volume, place)

    async def _source(self, source: Object, place: Path) -> dict[str, bytes]:
        if token := source.get("serviceAccountToken"):
            return {token["path"]: await self._token(token, place / token["path"])}
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items") or []
            return {each["path"]: field_of(self._pod, each["fieldRef"]["fieldPath"], self._address).encode() for each in items}
        for kind, resource in (("configMap", "configmaps"), ("secret", "secrets")):
            if kind in source:
                data = await fetch(
                    self._api, self._namespace, resource, source[kind]["name"], source[kind].get("optional", False)
                )
                items = source[kind].get("items")
                return {each["path"]: data[each["key"]] for each in items if each["key"] in data} if items is not None else data
        raise VolumeProblem(f"a test kubelet has no volumes of this kind: {sorted(source.keys() - {'name'})}")

    async def _token(self, source: Object, file: Path) -> bytes:
        meta = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName") or "default"
        seconds = source.get("expirationSeconds", 3600)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec: dict[str, Any] = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if source.get("audience"):
            spec["audiences"] = [source["audience"]]
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        answer = await self._api.insist("POST", path, {"spec": spec})
        if answer.status != 201:
            raise VolumeProblem(f"no token for service account {account}: {answer.body}")
        self._tokens.append((source, file, time.monotonic() + seconds * REFRESH_AT))
        token: str = answer.body["status"]["token"]
        return token.encode()


async def fetch(api: Api, namespace: str, resource: str, name: str, optional: bool) -> dict[str, bytes]:
    """Returns the data of a ConfigMap or Secret."""
    answer = await api.insist("GET", f"/api/v1/namespaces/{namespace}/{resource}/{name}")
    if answer.status == 404 and optional:
        return {}
    if answer.status != 200:
        raise VolumeProblem(f"{resource} {name!r} not found")
    data = answer.body.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {key: value.encode() for key, value in data.items()}


def write(path: Path, content: bytes) -> None:
    """Replaces a file in one step, so that a reader gets the old or the new content, and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(0o644)
    os.replace(fresh, path)
