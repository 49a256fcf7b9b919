"""The two ways S3Storage talks to a bucket. Both raise `Refused` for whatever goes wrong.

obstore moves the bytes. Its runtime does not survive a fork: a child of a process that has used it
hangs on its first call. Such a child (a multiprocessing pool, for one) uses boto3, which does.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from obstore.store import S3Credential

# Key, size, and seconds since 1970.
Listed = tuple[str, int, float]
Span = tuple[int, int] | None
"""First byte and end of a range; an end of -1 is that of the object; (-n, 0) its last n bytes; None all of it."""

UNREACHABLE = 0


class Refused(Exception):
    """A request that failed: HTTP status (0: no answer) and the store's code for it, without its text.

    The text is left behind on purpose: it can hold parts of the request.
    """

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Settings:
    """Where the bucket is and how to ask."""

    bucket: str
    endpoint: str | None
    region: str
    virtual_hosted: bool
    timeout: float
    connect_timeout: float
    retries: int


class Client(Protocol):
    def put(self, key: str, data: bytes, create: bool) -> None: ...
    def get(self, key: str, span: Span) -> bytes: ...
    def head(self, key: str) -> None: ...
    def delete(self, key: str) -> None: ...
    def list(self, folder: str) -> Iterator[Listed]: ...
    def close(self) -> None: ...


_obstore_is_dead = False


def _after_fork() -> None:
    global _obstore_is_dead
    _obstore_is_dead = _obstore_is_dead or "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_client(settings: Settings, session: Any) -> Client:
    """A client for this process. `session` is a boto3 session that finds the credentials."""
    return BotoClient(settings, session) if _obstore_is_dead else ObstoreClient(settings, session)


class ObstoreClient:
    """Bytes through obstore. It retries lost connections, timeouts and 5xx, with exponential backoff and jitter."""

    def __init__(self, settings: Settings, session: Any) -> None:
        # Imported late, so that a process that only forks workers leaves it to them.
        import obstore
        from obstore.store import S3Store

        self._obstore = obstore
        endpoint = settings.endpoint
        if endpoint and settings.virtual_hosted:
            scheme, host = endpoint.split("://", 1)
            endpoint = f"{scheme}://{settings.bucket}.{host}"
        config: dict[str, Any] = {
            "region": settings.region,
            "virtual_hosted_style_request": settings.virtual_hosted,
            # One request a key: the bulk API needs headers that not every store takes.
            "disable_bulk_delete": True,
        }
        if endpoint:
            config["endpoint"] = endpoint
        self._store = S3Store(
            settings.bucket,
            config=config,  # type: ignore[arg-type]  # a plain dict, for keys that older stubs lack
            client_options={
                "allow_http": bool(endpoint and urlsplit(endpoint).scheme == "http"),
                "timeout": timedelta(seconds=settings.timeout),
                "connect_timeout": timedelta(seconds=settings.connect_timeout),
            },
            retry_config={
                "max_retries": settings.retries,
                # No new attempt after this, so a call ends within twice the timeout.
                "retry_timeout": timedelta(seconds=settings.timeout),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
            credential_provider=_Credentials(session),
        )

    def put(self, key: str, data: bytes, create: bool) -> None:
        try:
            self._store.put(key, data, mode="create" if create else "overwrite", use_multipart=False)
        except Exception as error:
            raise _refused(error) from None

    def get(self, key: str, span: Span) -> bytes:
        try:
            if span is None:
                return self._store.get(key).bytes().to_bytes()
            first, end = span
            wanted: Any = {"suffix": -first} if first < 0 else {"offset": first} if end < 0 else (first, end)
            return self._store.get(key, options={"range": wanted}).bytes().to_bytes()
        except Exception as error:
            raise _refused(error) from None

    def head(self, key: str) -> None:
        try:
            self._store.head(key)
        except Exception as error:
            raise _refused(error) from None

    def delete(self, key: str) -> None:
        try:
            self._store.delete(key)
        except Exception as error:
            raise _refused(error) from None

    def list(self, folder: str) -> Iterator[Listed]:
        try:
            for page in self._store.list(folder or None, chunk_size=1000):
                for item in page:
                    yield item["path"], item["size"], item["last_modified"].timestamp()
        except Exception as error:
            raise _refused(error) from None

    def close(self) -> None:
        """obstore closes its idle connections by itself."""


class _Credentials:
    """Asks boto3 for credentials, and again before temporary ones run out."""

    def __init__(self, session: Any) -> None:
        self._credentials = session.get_credentials()

    def __call__(self) -> S3Credential:
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # boto3 renews them ahead of their end; asking it often costs nothing.
            "expires_at": datetime.now(timezone.utc) + timedelta(minutes=10),
        }


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")


def _refused(error: Exception) -> Refused:
    """What the text of an obstore error says: it has no fields to ask."""
    text = str(error)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    if "redirect without LOCATION" in text:
        return Refused(301, "PermanentRedirect")
    status = _STATUS.search(text)
    if status:
        return Refused(int(status[1]), code)
    if isinstance(error, FileNotFoundError):
        return Refused(404, code)
    return Refused(UNREACHABLE, code or ("Timeout" if "kind: Timeout" in text else "Connection"))


class BotoClient:
    """The same through boto3; also what makes and checks buckets.

    Its timeout is that of one read, and every retry starts it anew: a call can take longer than obstore's.
    """

    def __init__(self, settings: Settings, session: Any) -> None:
        from botocore.config import Config

        self._bucket = settings.bucket
        self._client = session.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.timeout,
                retries={"total_max_attempts": settings.retries + 1, "mode": "standard"},
                s3={"addressing_style": "virtual" if settings.virtual_hosted else "path"},
                # Newer checksums travel in a form that stores other than S3 often refuse.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def call(self, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

        try:
            return getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", UNREACHABLE)
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise Refused(status, "" if code.isdigit() else code) from None
        except (ConnectionError, HTTPClientError) as error:
            timeout = "Timeout" in type(error).__name__
            raise Refused(UNREACHABLE, "Timeout" if timeout else "Connection") from None
        except BotoCoreError as error:
            raise Refused(400, type(error).__name__) from None

    def put(self, key: str, data: bytes, create: bool) -> None:
        condition = {"IfNoneMatch": "*"} if create else {}
        self.call("put_object", Key=key, Body=data, **condition)

    def get(self, key: str, span: Span) -> bytes:
        from botocore.exceptions import BotoCoreError

        wanted = {}
        if span is not None:
            first, end = span
            wanted = {"Range": f"bytes={first}" if first < 0 else f"bytes={first}-{end - 1 if end >= 0 else ''}"}
        try:
            with self.call("get_object", Key=key, **wanted)["Body"] as body:
                return bytes(body.read())
        except BotoCoreError:
            raise Refused(UNREACHABLE, "Connection") from None

    def head(self, key: str) -> None:
        self.call("head_object", Key=key)

    def delete(self, key: str) -> None:
        self.call("delete_object", Key=key)

    def list(self, folder: str) -> Iterator[Listed]:
        more: dict[str, str] = {}
        while True:
            page = self.call("list_objects_v2", Prefix=folder, **more)
            for item in page.get("Contents", ()):
                yield item["Key"], item["Size"], item["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def close(self) -> None:
        self._client.close()
