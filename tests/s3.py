"""A store that speaks S3 on loopback, as slow as wanted, which says what was asked of it.

moto keeps the objects, or they are the files of a folder; before it stands a clock: every request
waits, and all that leaves shares one line of so many bytes a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

__all__ = ["S3Store", "s3_store"]

_PIECE_BYTES = 64 * 1024
_LIST = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


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
    # Changes the body of an answer to a GET of an object, by its key; a shorter one breaks off.
    alter: Callable[[str, bytes], bytes] = lambda _, body: body
    _line: threading.Lock = field(default_factory=threading.Lock)
    _is_free_at: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """What fsspec needs to know: `fsspec.config.conf["s3"]`."""
        return {"endpoint_url": self.endpoint, "key": "testing", "secret": "testing"}

    def upload(self, folder: Path, name: str, *, checksums: bool = True) -> str:
        """Put a folder into the bucket, at once; return its URL.

        With ``checksums`` the store keeps CRC32 of each object, which its client compares.
        """
        import s3fs

        wanted = "when_supported" if checksums else "when_required"
        system = s3fs.S3FileSystem(
            **self.options,
            config_kwargs={"request_checksum_calculation": wanted},
            skip_instance_cache=True,
        )
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
            body = whole = b"".join(app(environ, start_response))
            key = None
            with self._line:
                self.requests += 1
                if environ["REQUEST_METHOD"] == "GET" and not environ.get("QUERY_STRING"):
                    key = environ["PATH_INFO"].partition(f"{self.bucket}/")[2]
                    self.sent_bytes[key] = self.sent_bytes.get(key, 0) + len(body)
            if key is not None:
                body = self.alter(key, body)
            return pieces(body, whole)

        def pieces(body: bytes, whole: bytes) -> Iterator[bytes]:
            for first in range(0, len(body), _PIECE_BYTES):
                yield self._paced(body[first : first + _PIECE_BYTES])
            if len(body) < len(whole):
                raise ConnectionResetError("as a test asks")

        return answer


def _folder_app(folder: Path, bucket: str) -> Callable[..., Iterable[bytes]]:
    """Return S3's way to list and read the files of a folder.

    moto copies the whole object for every range of it.
    """

    def listed(query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found, folders = [], set()
        for path in sorted(folder.rglob("*")):
            key = path.relative_to(folder).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            head, divided, _ = key[len(prefix) :].partition(delimiter or "\0")
            if divided:
                folders.add(f"{prefix}{head}{delimiter}")
                continue
            found.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"{path.stat().st_mtime_ns}"</ETag></Contents>'
            )
        found += [f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in folders]
        return (
            f"{_LIST}<IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>".encode()
        )

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        key = environ["PATH_INFO"].removeprefix(f"/{bucket}").strip("/")
        path = folder / key
        if not key:
            body = listed(parse_qs(environ["QUERY_STRING"]))
            start_response("200 OK", [("Content-Type", "application/xml")])
            return [body]
        if not path.is_file():
            start_response("404 Not Found", [("Content-Length", "0")])
            return []
        found = path.stat()
        first, _, last = environ.get("HTTP_RANGE", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, found.st_size - int(last))
        stop = min(int(last) + 1, found.st_size) if first and last else found.st_size
        headers = [
            ("Content-Length", str(stop - start)),
            ("Accept-Ranges", "bytes"),
            ("ETag", f'"{found.st_mtime_ns}"'),
            ("Last-Modified", formatdate(found.st_mtime, usegmt=True)),
        ]
        if "HTTP_RANGE" in environ:
            headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{found.st_size}"))
        start_response("206 Partial" if "HTTP_RANGE" in environ else "200 OK", headers)
        if environ["REQUEST_METHOD"] == "HEAD":
            return []
        with path.open("rb") as file:
            file.seek(start)
            return [file.read(stop - start)]

    return app


@contextmanager
def s3_store(
    folder: Path | None = None,
    *,
    seconds_per_request: float = 0.0,
    mb_per_second: float = 0.0,
) -> Iterator[S3Store]:
    """Serve a bucket from a thread of this process, and have fsspec find it.

    Args:
        folder: Whose files it has, to read; None for an empty bucket to write to.
        seconds_per_request: What each request waits.
        mb_per_second: What all answers together may take; 0 for no limit.
    """
    import boto3
    import fsspec
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    store = S3Store("", "bucket")
    kept = DomainDispatcherApplication(create_backend_app) if folder is None else None
    app = store.wrap(kept or _folder_app(folder or Path(), store.bucket))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
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
        if folder is None:
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
