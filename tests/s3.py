"""A store that speaks S3 on loopback, as slow as wanted, which says what was asked of it.

moto keeps the objects; before it stands a clock: every request waits, and all that leaves shares
one line of so many bytes a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["S3Store", "s3_store"]

_PIECE_BYTES = 64 * 1024


@dataclass
class S3Store:
    """A bucket, and how to reach it."""

    endpoint: str
    bucket: str
    seconds_per_request: float = 0.0
    bytes_per_second: float = float("inf")
    # Bytes and number of answered GETs of objects, by key.
    sent_bytes: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    _line: threading.Lock = field(default_factory=threading.Lock)
    _is_free_at: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec needs to know: `fsspec.config.conf["s3"]`."""
        return {"endpoint_url": self.endpoint, "key": "testing", "secret": "testing"}

    def upload(self, folder: Path, name: str) -> str:
        """Put a folder into the bucket, at once; return its URL."""
        import s3fs

        system = s3fs.S3FileSystem(**self.options, skip_instance_cache=True)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{self.bucket}/{name}/{path.relative_to(folder)}"
                system.pipe_file(key, path.read_bytes())
        return f"s3://{self.bucket}/{name}"

    def forget(self) -> None:
        """Begin to count anew."""
        self.sent_bytes.clear()
        self.requests = 0

    def _paced(self, data: bytes) -> bytes:
        with self._line:
            now = time.monotonic()
            self._is_free_at = max(now, self._is_free_at) + len(data) / self.bytes_per_second
            wait = self._is_free_at - now
        if wait > 0.001:
            time.sleep(wait)
        return data

    def wrap(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Return a WSGI application behind the clock."""

        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if self.seconds_per_request:
                time.sleep(self.seconds_per_request)
            body = b"".join(app(environ, start_response))
            with self._line:
                self.requests += 1
                if environ["REQUEST_METHOD"] == "GET" and not environ.get("QUERY_STRING"):
                    key = environ["PATH_INFO"].partition(f"{self.bucket}/")[2]
                    self.sent_bytes[key] = self.sent_bytes.get(key, 0) + len(body)
            pieces = range(0, len(body), _PIECE_BYTES)
            return (self._paced(body[first : first + _PIECE_BYTES]) for first in pieces)

        return answer


@contextmanager
def s3_store(*, seconds_per_request: float = 0.0, mb_per_second: float = 0.0) -> Iterator[S3Store]:
    """Serve an empty bucket from a thread of this process, and have fsspec find it."""
    import boto3
    import fsspec
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    store = S3Store("", "bucket")
    app = store.wrap(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    before = fsspec.config.conf.get("s3")
    try:
        client = boto3.client(
            "s3",
            endpoint_url=store.endpoint,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        client.create_bucket(Bucket=store.bucket)
        fsspec.config.conf["s3"] = store.options
        store.seconds_per_request = seconds_per_request
        if mb_per_second:
            store.bytes_per_second = mb_per_second * 1e6
        yield store
    finally:
        fsspec.config.conf.pop("s3", None)
        if before is not None:
            fsspec.config.conf["s3"] = before
        server.shutdown()
        serving.join()
        server.server_close()
