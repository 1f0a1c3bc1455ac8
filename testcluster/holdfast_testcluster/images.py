"""The images of the test cluster. An image is a name and the program that it runs. The file system is this machine's."""

import asyncio
import json
from pathlib import Path

from holdfast_testcluster.status import Object


class ImageMissing(Exception):
    pass


class Images:
    """Reads the JSON file `{"run": {image: argv}, "pull_seconds": {image: seconds}}` at each pull, because tests change it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._pulled: set[str] = set()

    async def pull(self, container: Object) -> None:
        """Waits for the image's pull time at its first pull. Raises `ImageMissing`."""
        image: str = container["image"]
        if image in self._pulled:
            return
        await asyncio.sleep(self._table().get("pull_seconds", {}).get(image, 0))
        known = bool(container.get("command")) or image in self._table().get("run", {})
        if image.endswith(":missing") or not known:
            raise ImageMissing(f'failed to pull and unpack image "{image}": not found')
        if image in self._table().get("run", {}):  # an image that is not in the table can be used if its pod has a command
            self._pulled.add(image)

    def program(self, container: Object) -> list[str]:
        if container.get("command"):
            return list(container["command"])
        argv: list[str] = self._table()["run"][container["image"]]
        return list(argv)

    def _table(self) -> Object:
        table: Object = json.loads(self._path.read_text()) if self._path else {}
        return table
