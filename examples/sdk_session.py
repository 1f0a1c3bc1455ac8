"""Hold a session of the pool `notebook` and send requests to it.

The server comes from HOLDFAST_URL and HOLDFAST_TOKEN, from `holdfast login`, or is the fleet on this machine.
"""

import asyncio

import aiohttp

from holdfast.client import LeaseLost, claim


async def main() -> None:
    try:
        async with claim("notebook", tenant="acme") as worker, aiohttp.ClientSession() as http:
            print(f"holding {worker.id} (protected: {worker.protected})")
            assert worker.endpoint is not None
            async with http.get(worker.endpoint, headers=worker.headers) as answer:
                print(f"it answered {answer.status}")
    except LeaseLost as lost:  # whatever the block did was cancelled: the worker is no longer ours
        print(f"start again: {lost}")


asyncio.run(main())
