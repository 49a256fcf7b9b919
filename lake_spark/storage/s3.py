"""Objects in a bucket: S3, whatever speaks its protocol, and Alibaba Cloud OSS."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import urlsplit

from lake_spark.errors import (
    ConfigError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageFailure,
    StorageUnavailable,
)
from lake_spark.storage._s3_clients import UNREACHABLE, BotoClient, Client, Refused, Settings, Span, open_client
from lake_spark.storage.base import ForkSafeLock, StoredObject, check_key, check_prefix, check_range
from lake_spark.tally import count

_RACE_ATTEMPTS = 6
_OSS_REGION = re.compile(r"oss-[a-z0-9-]+")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")


class S3Storage:
    """Objects in an S3 bucket, under `base_path`.

    Without keys, boto3 finds the credentials: environment, `profile`, web identity, container or
    instance role. `endpoint` is for stores other than Amazon's; `AWS_ENDPOINT_URL_S3` and
    `AWS_ENDPOINT_URL` stand in for it.

    `timeout` bounds one request and `connect_timeout` its connection. Lost connections, timeouts and
    5xx answers are retried up to `retries` times with exponential backoff and jitter, none of them
    started after `timeout`, so a call ends within twice the timeout. A conditional put that
    succeeded and lost its answer is retried too, finds itself and raises `ObjectExists`: the caller
    compares the bytes. `conditional_put=False` is for stores without If-None-Match; there `if_absent`
    looks first and puts then, and two writers can get past each other.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        profile: str | None = None,
        base_path: str = "",
        virtual_hosted: bool = False,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        retries: int = 5,
        kind: str = "s3",
        conditional_put: bool = True,
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(f"not a bucket name: {bucket!r}")
        if bool(access_key) != bool(secret_key):
            raise ConfigError(f"bucket {bucket}: give both an access key and a secret key, or neither")
        self.kind = kind
        self.bucket = bucket
        self.endpoint = _checked_endpoint(endpoint or _endpoint_of_environment())
        self.base_path = base_path.strip("/")
        if self.base_path:
            check_key(self.base_path)
        self.conditional_put = conditional_put
        self._region = region
        self._keys = (access_key, secret_key, session_token)
        self._profile = profile
        self._virtual_hosted = virtual_hosted
        self._limits = (timeout, connect_timeout, retries)
        self._open()

    @classmethod
    def oss(cls, bucket: str, endpoint: str, **options: Any) -> S3Storage:
        """A bucket of Alibaba Cloud OSS. `endpoint` is a URL, a host, or a region such as `oss-cn-hangzhou`."""
        if _OSS_REGION.fullmatch(endpoint):
            endpoint = f"https://{endpoint}.aliyuncs.com"
        elif "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        label = (urlsplit(endpoint).hostname or "").partition(".")[0]
        if _OSS_REGION.fullmatch(label):
            options.setdefault("region", label.removesuffix("-internal"))
        options = {"virtual_hosted": True, "kind": "oss", "conditional_put": False, **options}
        return cls(bucket, endpoint=endpoint, **options)

    def _open(self) -> None:
        self._lock = ForkSafeLock()
        self._pid = os.getpid()
        self._client: Client | None = None
        self._bucket_seen = False

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        place = self._place(key)
        if if_absent and not self.conditional_put:
            if self.exists(key):
                raise ObjectExists(f"object {key} already exists in {self._where}")
            if_absent = False
        for attempt in range(_RACE_ATTEMPTS):
            try:
                self._connected().put(place, data, if_absent)
            except Refused as refused:
                # 409: another conditional put of this key was under way, and either may have failed.
                if refused.status == 409 and if_absent and attempt + 1 < _RACE_ATTEMPTS:
                    count(retries=1)
                    time.sleep(random.uniform(0.05, 0.1) * 2**attempt)
                    continue
                self._raise("put", key, refused)
            self._bucket_seen = True
            count(objects_written=1, bytes_written=len(data))
            return

    def get(self, key: str, *, start: int | None = None, length: int | None = None) -> bytes:
        place = self._place(key)
        check_range(length)
        if length == 0:
            if not self.exists(key):
                raise ObjectMissing(f"no object {key} in {self._where}")
            return b""
        try:
            data = self._connected().get(place, _span(start, length))
        except Refused as refused:
            if refused.status == 416:  # the range begins past the end, or the object is empty
                return b""
            self._raise("get", key, refused)
        self._bucket_seen = True
        count(objects_read=1, bytes_read=len(data))
        return data if length is None else data[:length]

    def delete(self, key: str) -> None:
        try:
            self._connected().delete(self._place(key))
        except Refused as refused:
            if refused.status != 404 or refused.code == "NoSuchBucket":
                self._raise("delete", key, refused)

    def exists(self, key: str) -> bool:
        place = self._place(key)
        try:
            self._connected().head(place)
        except Refused as refused:
            if refused.status != 404:
                self._raise("look for", key, refused)
            if not self._bucket_seen:
                # The answer to a HEAD has no body that says what is missing, object or bucket.
                return self._exists_by_get(key, place)
            return False
        self._bucket_seen = True
        return True

    def list(self, prefix: str) -> Iterator[str]:
        return (found.key for found in self.objects(prefix))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        folder = check_prefix(prefix)
        base = f"{self.base_path}/" if self.base_path else ""
        # S3 lists in order of keys. Stores that keep folders list `a/b` before `a-b`, which sorts
        # first: so hold back a folder until no name that begins with its name can follow.
        held: list[StoredObject] = []
        first = ""
        try:
            for place, size, modified in self._connected().list(base + folder):
                key = place[len(base) :]
                name = key[len(folder) :].partition("/")[0]
                if held and not (name.startswith(first) and name[len(first) :][:1] < "/"):
                    yield from sorted(held)
                    held = []
                if not held:
                    first = name
                if key.startswith(prefix):
                    held.append(StoredObject(key, size, modified))
        except Refused as refused:
            self._raise("list", prefix or "all objects", refused)
        yield from sorted(held)

    def create_bucket(self) -> None:
        """Make the bucket; one that is already yours is fine."""
        session = self._session()
        region = self._settings(session).region
        # Amazon wants the region named, except in the one that was there first.
        elsewhere = self.endpoint is None and region != "us-east-1"
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if elsewhere else {}
        try:
            self._ask(session, "create_bucket", **where)
        except Refused as refused:
            if refused.code == "BucketAlreadyOwnedByYou":
                return
            if refused.code == "BucketAlreadyExists":
                raise StorageDenied(f"cannot create {self._where}: the name is taken; choose another") from None
            self._raise("create", "the bucket", refused)

    def check_bucket(self) -> None:
        """Raise `StorageDenied` or `StorageUnavailable` unless the bucket can be listed."""
        try:
            self._ask(self._session(), "list_objects_v2", MaxKeys=1)
        except Refused as refused:
            self._raise("list", "objects", refused)

    def _ask(self, session: Any, operation: str, **arguments: Any) -> None:
        client = BotoClient(self._settings(session), session)
        try:
            client.call(operation, **arguments)
        finally:
            client.close()

    def close(self) -> None:
        """Close connections; the next call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._pid == os.getpid():
                client.close()

    def __repr__(self) -> str:
        path = f", base_path={self.base_path!r}" if self.base_path else ""
        return f"S3Storage({self.bucket!r}, kind={self.kind!r}, host={self._host!r}{path})"

    def __getstate__(self) -> dict[str, Any]:
        local = ("_lock", "_pid", "_client", "_bucket_seen")
        return {name: value for name, value in self.__dict__.items() if name not in local}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _place(self, key: str) -> str:
        check_key(key)
        return f"{self.base_path}/{key}" if self.base_path else key

    def _exists_by_get(self, key: str, place: str) -> bool:
        try:
            self._connected().get(place, (0, 1))
        except Refused as refused:
            if refused.status == 404 and refused.code != "NoSuchBucket":
                self._bucket_seen = True
                return False
            if refused.status != 416:
                self._raise("look for", key, refused)
        self._bucket_seen = True
        return True

    def _connected(self) -> Client:
        if self._client is not None and self._pid == os.getpid():
            return self._client
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                session = self._session()
                self._client = open_client(self._settings(session), session)
                self._pid = os.getpid()
            return self._client

    def _session(self) -> Any:
        import boto3
        from botocore.exceptions import BotoCoreError

        access_key, secret_key, token = self._keys
        try:
            session = boto3.session.Session(
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                aws_session_token=token,
                profile_name=self._profile,
            )
            found = session.get_credentials()
        except BotoCoreError as error:
            raise ConfigError(
                f"{self._where}: no credentials from the profile {self._profile!r} ({type(error).__name__})"
            ) from None
        if found is None:
            raise StorageDenied(
                f"{self._where}: no credentials found; give an access key and a secret key, "
                "name a profile, or run where a role is attached"
            )
        return session

    def _settings(self, session: Any) -> Settings:
        timeout, connect_timeout, retries = self._limits
        return Settings(
            bucket=self.bucket,
            endpoint=self.endpoint,
            region=self._region or session.region_name or "us-east-1",
            virtual_hosted=self._virtual_hosted,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
        )

    @property
    def _host(self) -> str:
        if not self.endpoint:
            return f"s3.{self._region}.amazonaws.com:443" if self._region else "s3.amazonaws.com:443"
        parts = urlsplit(self.endpoint)
        port = parts.port or (80 if parts.scheme == "http" else 443)
        return f"{self.bucket}.{parts.hostname}:{port}" if self._virtual_hosted else f"{parts.hostname}:{port}"

    @property
    def _where(self) -> str:
        return f"bucket {self.bucket} at {self._host}"

    def _raise(self, action: str, key: str, refused: Refused) -> NoReturn:
        """The error for a failed request. It is raised from None: no text of the store comes along."""
        raise self._error(f"cannot {action} {key} in {self._where}", key, refused) from None

    def _error(self, what: str, key: str, refused: Refused) -> StorageFailure:
        status, code = refused.status, refused.code
        if status == UNREACHABLE:
            timeout, connect_timeout, retries = self._limits
            if code == "Timeout":
                reason = f"no answer within {timeout:g} s (connecting: {connect_timeout:g} s)"
            else:
                reason = f"no connection, or it was lost ({retries} retries)"
            return StorageUnavailable(f"{what}: {reason}; check the endpoint and the network")
        if code == "NoSuchBucket":
            return StorageDenied(f"{what}: the bucket does not exist; create it, or correct its name or the endpoint")
        if status == 404:
            return ObjectMissing(f"no object {key} in {self._where}")
        if status == 412 or code == "PreconditionFailed":
            return ObjectExists(f"object {key} already exists in {self._where}")
        if status == 409:
            return StorageUnavailable(f"{what}: other writers of the same key kept getting in the way; try again")
        if code == "SignatureDoesNotMatch":
            return StorageDenied(f"{what}: the secret key does not fit the access key; correct it")
        if code == "InvalidAccessKeyId":
            return StorageDenied(f"{what}: the access key is not known there; correct it")
        if code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):
            return StorageDenied(f"{what}: the session token has expired or is wrong; get a new one")
        if status == 301 or code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
            return StorageDenied(f"{what}: the bucket is in another region; set the region")
        if status in (401, 403):
            return StorageDenied(
                f"{what}: access denied; these credentials lack the right to do that (or are wrong): "
                "allow reading, writing, deleting and listing"
            )
        if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
            return StorageUnavailable(f"{what}: the store answered {status} {code}".rstrip() + "; try again later")
        return StorageFailure(f"{what}: the store answered {status} {code}".rstrip())


def _span(start: int | None, length: int | None) -> Span:
    """The bytes to ask for: what a negative start leaves of `length` is cut off by the caller."""
    if not start and length is None:
        return None
    first = start or 0
    if first < 0:
        return first, 0
    return first, -1 if length is None else first + length


def _endpoint_of_environment() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def _checked_endpoint(endpoint: str | None) -> str | None:
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise ConfigError("an endpoint holds no credentials: pass them as access key and secret key")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"not an endpoint: {endpoint!r} (expected http://host:port or https://host)")
    return f"{parts.scheme}://{parts.netloc}"
