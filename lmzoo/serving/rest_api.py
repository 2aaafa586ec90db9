"""An ASGI application with the REST predict API of TensorFlow Serving."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import json
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from lmzoo.serving.json_tensors import Json, RequestError
from lmzoo.serving.model_versions import ModelVersions

_BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METRICS = """\
# HELP lmzoo_requests_total Answered HTTP requests by their status.
# TYPE lmzoo_requests_total counter
{requests}
# HELP lmzoo_predict_seconds Time from a request for predictions to its answer.
# TYPE lmzoo_predict_seconds histogram
{buckets}
lmzoo_predict_seconds_sum {seconds}
lmzoo_predict_seconds_count {count}
# HELP lmzoo_model_version The version that answers where none is asked for.
# TYPE lmzoo_model_version gauge
lmzoo_model_version{{model={model}}} {version}
"""


class _VersionConvertor(IntegerConvertor):
    """Converter of path parameters for version numbers of at most 18 digits."""

    regex = "[0-9]{1,18}"  # Python refuses integers of thousands of digits


register_url_convertor("version", _VersionConvertor())


class RestApi(Starlette):
    """An ASGI application that serves the versions of a model over TensorFlow Serving's REST API.

    `/` describes the API, and `/metrics` reports the number of requests and the durations of predictions to Prometheus.
    While the application runs, new versions in the directory are loaded, and deleted versions are unloaded.

    Args:
        folder: path of a directory with the versions, SavedModels in subdirectories named by integers.
        name: str, name of the model; by default the name of the directory.
        max_texts: int, maximum number of texts, or rows of ids, in each input of a request.
        max_body_bytes: int, maximum size of a request body in bytes.
        body_seconds: float, maximum time for a client to send the body, in seconds.
        poll_seconds: float, seconds between checks for new versions.

    Attributes:
        versions: `ModelVersions`, the loaded versions.
        running: set of int, ids of the threads that are computing predictions.
        model_path: str, path of the model in URLs.

    Raises:
        FileNotFoundError: If the directory does not exist, contains no version, or is itself a version.
        NotADirectoryError: If `folder` is a file.
        ValueError: If a version cannot be loaded.

    Example: see `lmzoo.serving.server.running_server`.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str | None = None,
        *,
        max_texts: int = 1024,
        max_body_bytes: int = 16 * 2**20,
        body_seconds: float = 60.0,
        poll_seconds: float = 2.0,
    ) -> None:
        self.versions = ModelVersions(folder, name)
        self._max_texts = max_texts
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds
        self._poll_seconds = poll_seconds
        self._requests: Counter[int] = Counter()  # number of requests by status
        self._predictions = [0] * (len(_BUCKET_SECONDS) + 1)  # number of predictions by time
        self._seconds = 0.0  # total time of predictions
        self.running: set[int] = set()
        self._base = f"/v1/models/{self.versions.name}"
        self.model_path = urllib.parse.quote(self._base)
        routes = [Route("/", self._index), Route("/metrics", self._metrics)]
        for path in (self._base, f"{self._base}/versions/{{version:version}}"):
            routes += [
                Route(path, self._state),
                Route(f"{path}/metadata", self._answer_metadata),
                Route(f"{path}:predict", self._predict, methods=["POST"]),
            ]
        handlers: dict[type[Exception], Callable[..., Response | Awaitable[Response]]] = {
            RequestError: lambda _, error: _make_json_response({"error": str(error)}, error.status),
            HTTPException: self._no_route,
            # nginx's status for a closed connection, only for the metrics.
            ClientDisconnect: lambda *_: Response(status_code=499),
            Exception: lambda *_: _make_json_response({"error": "The server failed; its log says why."}, 500),
        }
        super().__init__(routes=routes, exception_handlers=handlers, lifespan=self._watch_folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests[message["status"]] += 1
            await send(message)

        await super().__call__(scope, receive, count_and_send)

    @contextlib.asynccontextmanager
    async def _watch_folder(self, _: Starlette) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await asyncio.sleep(self._poll_seconds)
                with contextlib.suppress(OSError):  # a file may disappear during the check
                    await run_in_threadpool(self.versions.refresh)

        task = asyncio.create_task(watch())
        yield
        task.cancel()

    async def _index(self, _: Request) -> Response:
        version = self.versions.get()
        return _make_json_response(
            {
                "model": self.versions.name,
                "versions": sorted(self.versions.loaded, reverse=True),
                "signatures": {
                    name: {
                        "inputs": sorted(signature.structured_input_signature[1]),
                        "outputs": sorted(signature.structured_outputs),
                    }
                    for name, signature in sorted(version.signatures.items())
                },
                "predict": {"method": "POST", "path": f"{self.model_path}:predict", "body": version.example()},
                "limits": {"texts": self._max_texts, "bytes": self._max_body_bytes},
                "see_also": [self.model_path, f"{self.model_path}/metadata", "/metrics"],
            }
        )

    async def _metrics(self, _: Request) -> Response:
        cumulative_counts = list(itertools.accumulate(self._predictions))
        text = _METRICS.format(
            requests="\n".join(
                f'lmzoo_requests_total{{status="{status}"}} {num_requests}'
                for status, num_requests in sorted(self._requests.items())
            ),
            buckets="\n".join(
                f'lmzoo_predict_seconds_bucket{{le="{upper_bound}"}} {count}'
                for upper_bound, count in zip((*_BUCKET_SECONDS, "+Inf"), cumulative_counts, strict=True)
            ),
            seconds=self._seconds,
            count=cumulative_counts[-1],
            model=json.dumps(self.versions.name, ensure_ascii=False),
            version=max(self.versions.loaded),
        )
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _state(self, request: Request) -> Response:
        version_number = request.path_params.get("version")
        self.versions.get(version_number)
        version_numbers = sorted(self.versions.loaded, reverse=True) if version_number is None else [version_number]
        ok_status = {"error_code": "OK", "error_message": ""}
        states: list[Json] = [
            {"version": str(listed_number), "state": "AVAILABLE", "status": ok_status}
            for listed_number in version_numbers
        ]
        return _make_json_response({"model_version_status": states})

    def _answer_metadata(self, request: Request) -> Response:  # not async, so that Starlette reads the file in a thread
        version_number = request.path_params.get("version")
        metadata = self.versions.get(version_number).metadata()
        version_number = max(self.versions.loaded) if version_number is None else version_number
        spec = {"name": self.versions.name, "signature_name": "", "version": str(version_number)}
        return _make_json_response({"model_spec": spec, "metadata": metadata})

    async def _predict(self, request: Request) -> Response:
        start_time = time.perf_counter()
        try:
            body = await self._read_body(request)
            if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
                message = f"The body must be plain JSON, not {encoding}."
                raise RequestError(message, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
            response = await run_in_threadpool(self._answer, request.path_params.get("version"), body)
        except asyncio.CancelledError:  # an exception handler would also be canceled
            return _make_json_response({"error": "The server is stopping."}, HTTPStatus.SERVICE_UNAVAILABLE)
        seconds = time.perf_counter() - start_time
        self._seconds += seconds
        self._predictions[bisect.bisect_left(_BUCKET_SECONDS, seconds)] += 1
        return response

    def _answer(self, version: int | None, body: bytes) -> Response:
        """Compute the response to the body of a predict request.

        Raises:
            RequestError: If the request is invalid, or the version is not loaded.
        """
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"The body is not JSON: {error}") from None
        thread_id = threading.get_ident()
        self.running.add(thread_id)
        try:
            return _make_json_response(self.versions.get(version).predict(request, self._max_texts))
        finally:
            self.running.discard(thread_id)

    async def _read_body(self, request: Request) -> bytes:
        """Read the body of a request.

        Raises:
            RequestError: If the body is too large, or does not arrive in time.
        """
        body = bytearray()
        max_bytes = self._max_body_bytes
        too_large = RequestError(f"A body may have {max_bytes} bytes.", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if int(request.headers.get("Content-Length", 0)) > max_bytes:
            raise too_large
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > max_bytes:
                        raise too_large
                    body += chunk
        except TimeoutError:
            message = f"The body did not arrive within {self._body_seconds:g} seconds."
            raise RequestError(message, HTTPStatus.REQUEST_TIMEOUT) from None
        return bytes(body)

    async def _no_route(self, request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            method = "POST" if path.endswith(":predict") else "GET"
            message = f"{path} takes {method}, not {request.method}."
        else:
            message = f"There is nothing at {path}; there is {self._base}[/versions/N][:predict|/metadata]."
        return _make_json_response({"error": message}, error.status_code, error.headers)


def _make_json_response(answer: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers, "application/json")
