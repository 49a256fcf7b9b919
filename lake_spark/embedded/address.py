"""`file:DIR`: how the URL of an embedded lake is written and read."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, quote, unquote

from lake_spark.errors import ConfigError

_SCHEME = "file:"


def is_embedded(url: str) -> bool:
    """Whether a URL means a folder of this machine."""
    return url[: len(_SCHEME)].lower() == _SCHEME


def split_embedded(url: str) -> tuple[str, dict[str, str]]:
    """The URL in full form, whatever the current folder is later, and the options in its query.

    `file:DIR` takes the folder as it stands, up to a `?`. `file:///DIR` is a URL, with escapes such as %20.
    """
    place, _, query = url[len(_SCHEME) :].partition("?")
    if place.startswith("//"):
        host, slash, path = place[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ConfigError(
                f"an embedded lake is a folder of this machine: file:DIR or file:///DIR, not file://{host}"
            )
        path = slash + unquote(path)
    else:
        path = os.path.expanduser(place)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the folder of an embedded lake has a name in UTF-8, not {path!r}") from None
    if not path or "\0" in path or "\ufffd" in path:
        raise ConfigError(f"which folder? An embedded lake is file:DIR, such as file:./my-lake; not {url!r}")
    return f"file://{quote(os.path.realpath(path))}", dict(parse_qsl(query, keep_blank_values=True))


def folder_of(url: str) -> str:
    """The folder that a URL in full form names."""
    return unquote(url.removeprefix("file://"))
