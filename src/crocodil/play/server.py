"""The web server: one static page, what it may know about the model, and runs as server-sent events.

    GET  /           the page, with its style and scripts
    GET  /api/model  the model's name, lengths and registers, and the default requests
    GET  /api/queue  how many requests wait
    POST /api/runs   a request as JSON; the answer is a stream of events

Nothing is stored: a run belongs to its connection, and closing it stops the run. No other site may use the server:
a request must name a known host, send JSON, and, where the server is reachable from other machines, carry a token.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crocodil.pipeline import Crocodil
from crocodil.play.job_queue import JobQueue
from crocodil.play.requests import FieldError, parse
from crocodil.play.static_page import FILES, PAGE, about
from crocodil.play.views import Event, answer

LOCAL_HOSTS = ("127.0.0.1", "localhost")
MAX_BODY = 500_000  # bytes: two texts of the largest size with every character escaped
MAX_DRAINED = 16_000_000  # bytes: a larger body is not read to its end
SECONDS_BETWEEN_BEATS = 10.0  # a comment on a silent stream shows that it is alive

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def create_app(
    pipe: Crocodil, *, name: str, token: str | None = None, hosts: Sequence[str] = LOCAL_HOSTS
) -> Starlette:
    """Return the application for one model. With a token, the API answers only those who have it."""
    server = _Server(pipe, name, token)
    routes = [Route(path, _static(file)) for path, file in FILES.items()]
    routes += [
        Route("/api/model", server.model),
        Route("/api/queue", server.queue_length),
        Route("/api/runs", server.run, methods=["POST"]),
    ]
    guards = [Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
    return Starlette(routes=routes, middleware=guards, lifespan=server.lifespan)


class _Server:
    def __init__(self, pipe: Crocodil, name: str, token: str | None) -> None:
        self.pipe, self.name, self.token = pipe, name, token

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.queue = JobQueue(lambda request, emit: answer(self.pipe, request, emit))
        try:
            yield
        finally:
            await asyncio.to_thread(self.queue.close)

    async def model(self, http: HttpRequest) -> Response:
        return self._refusal(http) or JSONResponse(about(self.pipe, self.name))

    async def queue_length(self, http: HttpRequest) -> Response:
        return self._refusal(http) or JSONResponse(self.queue.length())

    async def run(self, http: HttpRequest) -> Response:
        if refusal := self._refusal(http):
            return refusal
        if http.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return _error(415, FieldError("", "send JSON"))
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(event: Event) -> None:  # called from any thread
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            request = parse(await _json_body(http))
            job = self.queue.submit(request, send)
        except ClientDisconnect:  # nobody reads the answer
            return Response()
        except _BodyError as error:
            return _error(413, error)
        except FieldError as error:
            return _error(400, error)
        return _RunResponse(self._stream(events), lambda: self.queue.cancel(job))

    async def _stream(self, events: "asyncio.Queue[Event]") -> AsyncIterator[str]:
        """Yield events until the last one."""
        while True:
            try:
                event = await asyncio.wait_for(events.get(), SECONDS_BETWEEN_BEATS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            yield f"data: {json.dumps(event)}\n\n"
            if event["event"] in ("done", "error"):
                return

    def _refusal(self, http: HttpRequest) -> Response | None:
        """Return an error if the token is missing or wrong."""
        given = http.headers.get("authorization", "").removeprefix("Bearer ")
        if self.token is None or secrets.compare_digest(given.encode(), self.token.encode()):
            return None
        return _error(401, FieldError("", "this server needs the token that `crocodil play` printed"))


class _RunResponse(StreamingResponse):
    """The stream of a run. However the connection ends, the job is cancelled, even if the stream never started."""

    def __init__(self, events: AsyncIterator[str], cancel: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.cancel()


class _BodyError(FieldError):
    """A body that is too large."""


async def _json_body(http: HttpRequest) -> Any:
    """Read a body of limited size. A larger one is read and thrown away, so that the sender sees the answer."""
    body, size = b"", 0
    async for chunk in http.stream():
        size += len(chunk)
        if size <= MAX_BODY:
            body += chunk
        elif size > MAX_DRAINED:
            break
    if size > MAX_BODY:
        raise _BodyError("", f"a request has at most {MAX_BODY:,} bytes, this one more")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise FieldError("", "the request is not JSON") from None


def _error(status: int, error: FieldError) -> Response:
    return JSONResponse(error.event(), status_code=status)


def _static(file: str) -> Any:
    async def page(http: HttpRequest) -> Response:
        return FileResponse(PAGE / file)

    return page


class _Headers:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in known)]
            await send(message)

        await self.app(scope, receive, with_headers)
