"""The server that sessions run in these tests. It shows the requests that it received, echoes, counts and streams."""

import asyncio
import os
import sys

from aiohttp import WSMsgType, web


async def show(request: web.Request) -> web.Response:
    headers = [[name.decode(), value.decode()] for name, value in request.raw_headers]
    return web.json_response({"target": request.raw_path, "headers": headers, "pid": os.getpid()})


async def count(request: web.Request) -> web.Response:
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
    return web.json_response({"size": size})


async def echo(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    async for piece in request.content.iter_any():
        await answer.write(piece)
    return answer


async def ticks(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    while True:
        await answer.write(b"data: tick\n\n")
        await asyncio.sleep(0.02)


async def quiet(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


async def talk(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data[::-1])
    return socket


async def die(request: web.Request) -> web.Response:
    os._exit(9)


async def raw_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"<end>")
    writer.close()


def main() -> None:
    port = int(os.environ["PORT"])
    if sys.argv[1:] == ["raw"]:

        async def serve() -> None:
            server = await asyncio.start_server(raw_echo, "127.0.0.1", port)
            await server.serve_forever()

        asyncio.run(serve())
        return
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/ws", talk)
    app.router.add_get("/ticks", ticks)
    app.router.add_get("/quiet", quiet)
    app.router.add_get("/die", die)
    app.router.add_post("/count", count)
    app.router.add_post("/echo", echo)
    app.router.add_get("/{rest:.*}", show)
    print("serving", flush=True)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


main()
