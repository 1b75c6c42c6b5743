"""The server of the page: on this machine only, and only for who has the token.

Every address begins with the token. Requests with another Host (a name that points here) or Origin (another page) are refused,
and images are named by number, so no path from outside reaches the disk.
"""

import json
import secrets
import socket
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from momatch.labeling.answers import Answer
from momatch.labeling.pictures import LARGE, SMALL, PictureError, picture
from momatch.labeling.session import ConflictError, Session

HOST = "127.0.0.1"
_LAST_PORT = 65_535
#: Name of each file of the page -> its type.
_ASSETS = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Largest body of a request, in bytes.
_MOST_BODY = 100_000
#: What a person can answer besides a class.
_STATUSES = ("none", "skipped")


def listen(port: int = 0) -> socket.socket:
    """Listen on a port of this machine: a browser that comes before the server runs waits, and is not refused.

    Args:
        port: 0 for a free one.

    Raises:
        ValueError: if there is no such port.
        OSError: if it is taken.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port: got {port}, expected 0 (a free one) to {_LAST_PORT}")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"port {port} cannot be used: {error.strerror}; choose another --port") from error
    return listening


class LabelServer:
    """Serves a session on this machine.

    Args:
        session: what to show.
        listening: see `listen`.

    Attributes:
        address: of the page, with its token.
    """

    def __init__(self, session: Session, listening: socket.socket) -> None:
        self._socket = listening
        port = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.address = f"http://{HOST}:{port}/{token}/"
        application = build_application(session, token=token, port=port)
        config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until a signal ends it."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


def build_application(session: Session, *, token: str, port: int) -> Starlette:
    """The page and what it asks for, below the token."""
    page = _Page(session)
    routes = [
        *(Route(f"/{name}", page.asset) for name in _ASSETS),
        Route("/state", page.state),
        Route("/offers", page.offers),
        Route("/images/{row:int}", page.image),
        Route("/answers", page.answers, methods=["POST"]),
        Route("/undo", page.undo, methods=["POST"]),
        Route("/classes", page.classes, methods=["POST"]),
    ]
    return Starlette(
        routes=[Mount("/{token}", routes=routes)],
        middleware=[Middleware(_Guard, token=token, port=port)],
        exception_handlers={
            HTTPException: _refused,
            ConflictError: _conflicting,
            ValueError: _unusable,
            OSError: _unusable,
            Exception: _unexpected,
        },
    )


class _Guard:
    """Lets only requests of the page itself through, and adds headers that keep the browser to it."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(key.lower().encode(), value.encode()) for key, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        problem = self._problem(Request(scope))
        if problem is not None:
            await JSONResponse({"error": problem}, status_code=403)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _problem(self, request: Request) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self._hosts:
            return "wrong host"
        if origin is None and request.method not in ("GET", "HEAD"):
            return "no origin"
        if origin is not None and origin != f"http://{host}":
            return "wrong origin"
        given = request.url.path.split("/")[1]
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return "wrong token: open the address that momatch label printed"
        return None


class _Page:
    """The routes. Those that are not coroutines run in threads: they wait for the disk."""

    def __init__(self, session: Session) -> None:
        self._session = session
        folder = files("momatch.labeling") / "assets"
        self._assets = {name: (folder / (name or "page.html")).read_bytes() for name in _ASSETS}

    def asset(self, request: Request) -> Response:
        name = request.url.path.rsplit("/", 1)[1]
        return Response(self._assets[name], media_type=_ASSETS[name])

    def state(self, request: Request) -> Response:
        return JSONResponse(_printable(self._session.state(_rows(request.query_params.get("shown", "")))))

    def offers(self, request: Request) -> Response:
        count = _number(request.query_params.get("count", "1"))
        shown = _rows(request.query_params.get("shown", ""))
        return JSONResponse(_printable(self._session.offers(count, shown)))

    def image(self, request: Request) -> Response:
        path = self._session.image_path(request.path_params["row"])
        if path is None:
            raise HTTPException(404, "there is no such image")
        side = SMALL if request.query_params.get("size") == "small" else LARGE
        try:
            return Response(picture(path, side), media_type="image/jpeg")
        except PictureError as error:
            raise HTTPException(410, str(error)) from error

    async def answers(self, request: Request) -> Response:
        given = (await _body(request)).get("answers")
        if not isinstance(given, list) or not given:
            raise ValueError("answers: expected a list of at least one")
        return await _in_thread(self._answer, dict(map(_answer, given)), dict(map(_known, given)))

    async def undo(self, request: Request) -> Response:
        await _body(request)
        return await _in_thread(self._session.undo)

    async def classes(self, request: Request) -> Response:
        name = (await _body(request)).get("name")
        if not isinstance(name, str):
            raise ValueError("name: expected text")
        return await _in_thread(self._add_class, name)

    def _answer(self, answers: dict[int, Answer], known: dict[int, str]) -> dict[str, Any]:
        self._session.answer(answers, known)
        return self._session.state()

    def _add_class(self, name: str) -> dict[str, Any]:
        self._session.add_class(name)
        return self._session.state()


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Response:
    from starlette.concurrency import run_in_threadpool

    return JSONResponse(_printable(await run_in_threadpool(function, *arguments)))


async def _body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MOST_BODY:
            raise HTTPException(413, "the request is too large")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("expected JSON") from error
    if not isinstance(body, dict):
        raise ValueError("expected a JSON object")
    return body


def _answer(given: object) -> tuple[int, Answer]:
    """Row and answer, from {"row": 3, "known": "", "label": "cat"} or {"row": 3, "known": "", "status": "none"}."""
    if not isinstance(given, dict) or type(given.get("row")) is not int:
        raise ValueError("answers: expected objects with a row and a label or a status")
    label, status = given.get("label"), given.get("status")
    if isinstance(label, str) and label and status is None:
        return given["row"], Answer(label, "labelled")
    if label is None and status in _STATUSES:
        return given["row"], Answer("", status)
    raise ValueError(f"answers: expected a label, or a status of {' or '.join(_STATUSES)}")


def _known(given: dict[str, Any]) -> tuple[int, str]:
    """Row and what the page knew of it: two pages do not overwrite each other's answers."""
    if not isinstance(given.get("known"), str):
        raise ValueError("answers: expected what was known of each image, as it was offered")
    return given["row"], given["known"]


def _rows(text: str) -> list[int]:
    return [_number(word) for word in text.split(",") if word][:1000]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"got {text!r}, expected a number")
    return int(text)


def _printable(value: Any) -> Any:
    """Names of files may not be valid UTF-8."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


async def _conflicting(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=409)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A defect: the traceback goes to the terminal, a sentence to the page."""
    message = f"the server failed ({type(error).__name__}: {error}); answers so far are on disk, see the terminal"
    return JSONResponse({"error": message}, status_code=500)


async def _unusable(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=400 if isinstance(error, ValueError) else 500)
