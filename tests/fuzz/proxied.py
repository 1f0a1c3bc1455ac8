"""A session's proxy in a process of its own, in front of a served process that answers every request. Prints its port."""

import asyncio
import sys

from holdfast.agent.proxy import Proxy
from holdfast.agent.upstream import Port

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while b"\r\n\r\n" in await reader.read(65_536):  # the proxy sends a head at once
            writer.write(ANSWER)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(credential: str) -> None:
    served = await asyncio.start_server(_serve, "127.0.0.1", 0)
    proxy = Proxy(Port(("127.0.0.1",), served.sockets[0].getsockname()[1]))
    print(await proxy.listen("127.0.0.1", 0), flush=True)
    proxy.open(credential)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
