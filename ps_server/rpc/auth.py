"""Authentication of calls: an interceptor that looks at tokens, and what service methods ask of it.

Every method but the health service's needs a token where the server has one. Which job a call is about is in
its messages, so methods ask `check_job`. Wrong tokens cost little: each is answered late, few at a time, and
they share one line of the log in `LOG_EVERY_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health

from ps_server.log import logger
from ps_wire.access.status import code_of, metadata_of
from ps_wire.access.token import ANYBODY, Caller, TokenCheck
from ps_wire.errors import TokenRefused

ANSWER_AFTER_S = 0.5
MAX_WAITING = 256  # wrong tokens whose answer waits; the others are answered at once
LOG_EVERY_S = 10.0
_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def check_job(job: str) -> None:
    """Raises TokenRefused where whoever makes this call may not touch that job."""
    _caller.get().check(job)


def check_service(what: str) -> None:
    """Raises TokenRefused where whoever makes this call may not do what belongs to no job."""
    _caller.get().check_service(what)


def sees(job: str) -> bool:
    """Whether whoever makes this call is told of that job."""
    return _caller.get().sees(job)


def bound_to() -> str | None:
    """The job that whoever makes this call has the token of; None: of all."""
    return _caller.get().job


class Gatekeeper(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """The check of each call's token, and whose call it is. Used on the event loop only."""

    def __init__(self, check: TokenCheck, on_refused: Callable[[], None]) -> None:
        """Takes what a call must carry; `on_refused` counts."""
        self._check = check
        self._on_refused = on_refused
        self._waiting = 0
        self._unsaid = 0
        self._say_s = 0.0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See `grpc.aio.ServerInterceptor`."""
        if handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return await continuation(handler_call_details)
        try:
            _caller.set(self._check.caller(dict(handler_call_details.invocation_metadata or ())))
        except TokenRefused as error:
            return self._refusing(error)
        return await continuation(handler_call_details)

    def _refusing(self, error: TokenRefused) -> grpc.RpcMethodHandler:
        """A method of any kind that takes no message."""

        async def refuse(_messages: Any, context: grpc.aio.ServicerContext) -> None:
            self._on_refused()
            self._say(context.peer())
            if self._waiting < MAX_WAITING:
                self._waiting += 1
                try:
                    await asyncio.sleep(ANSWER_AFTER_S)
                finally:
                    self._waiting -= 1
            await context.abort(code_of(error), error.message, metadata_of(error))

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _say(self, peer: str) -> None:
        self._unsaid += 1
        now_s = time.monotonic()
        if now_s >= self._say_s:
            logger.warning("refused %d calls without a token of ours, the last from %s", self._unsaid, peer)
            self._unsaid, self._say_s = 0, now_s + LOG_EVERY_S
