"""What an image is here: a name, and the program it runs when the pod names none. Its file system is this machine's."""

import asyncio
import json
from pathlib import Path

from holdfast_testcluster.status import Object


class ImageMissing(Exception):
    pass


class Images:
    """A JSON file `{"run": {image: argv}, "pull_seconds": {image: seconds}}`, read at each pull: tests change it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._pulled: set[str] = set()

    async def pull(self, container: Object) -> None:
        """Takes the image's time, once; raises `ImageMissing`."""
        image: str = container["image"]
        if image in self._pulled:
            return
        await asyncio.sleep(self._table().get("pull_seconds", {}).get(image, 0))
        known = bool(container.get("command")) or image in self._table().get("run", {})
        if image.endswith(":missing") or not known:
            raise ImageMissing(f'failed to pull and unpack image "{image}": not found')
        if image in self._table().get("run", {}):  # any other image is as good as its pod's command
            self._pulled.add(image)

    def program(self, container: Object) -> list[str]:
        if container.get("command"):
            return list(container["command"])
        argv: list[str] = self._table()["run"][container["image"]]
        return list(argv)

    def _table(self) -> Object:
        table: Object = json.loads(self._path.read_text()) if self._path else {}
        return table
