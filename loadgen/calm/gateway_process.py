"""A gateway in a process of its own, behind uvicorn alone.

python -m loadgen.calm.gateway_process NATS_URL NATS_TOKEN PORT
"""

import asyncio
import sys

import uvicorn

from services.gateway.service import GatewayService
from shared.config import parse


async def serve(url: str, token: str, port: int) -> None:
    service = GatewayService(parse({"nats": {"url": url, "token": token}}))
    await service.start()
    server = uvicorn.Server(uvicorn.Config(service.api, port=port, log_level="error", lifespan="off"))
    await server.serve()
    await service.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
