"""The shop's door: POST /orders stores an order and publishes `OrderPlaced`, both or neither.

    python examples/shop/shop.py setup
    python examples/shop/web.py                       # port 8000
    curl localhost:8000/orders -H 'content-type: application/json' -d '{"id": "o-1", "cents": 1999}'

A client that got no answer asks again: the client has chosen the order's id, so that the second time changes nothing.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from shop import Order, OrderPlaced, sessions, shop
from sqlalchemy.dialects.sqlite import insert

PORT = 8000


class NewOrder(BaseModel):
    id: str = Field(min_length=1, max_length=100)
    cents: int = Field(gt=0)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """While the web process runs it forwards what is in the outbox, also what one before it has left."""
    async with shop:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=201)
def place_order(order: NewOrder) -> dict[str, str]:
    """A plain function: FastAPI runs it in a thread, and SQLAlchemy is plain here, too."""
    with sessions() as session, shop.transaction(session):
        new = insert(Order).values(id=order.id, cents=order.cents).on_conflict_do_nothing().returning(Order.id)
        if (
            session.scalar(new) is not None
        ):  # its message is committed with it, so that a known order needs no second one
            shop.publish(OrderPlaced(order.id, order.cents))
        elif session.get_one(Order, order.id).cents != order.cents:
            raise HTTPException(409, "there is another order with this id")
    return {"id": order.id}


def main() -> None:
    """Serve on a port; or, as ``web.py --fd 5``, on a socket that is open already."""
    config = uvicorn.Config(web, port=PORT, log_level="warning")
    sockets = [socket.socket(fileno=int(sys.argv[2]))] if sys.argv[1:2] == ["--fd"] else None
    uvicorn.Server(config).run(sockets)


if __name__ == "__main__":
    main()
