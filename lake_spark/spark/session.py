"""The lake's session of a worker process, and the options of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from urllib.parse import urlencode

from lake_spark.client import Config, Lake
from lake_spark.client.session import Session
from lake_spark.embedded import is_embedded, split_embedded
from lake_spark.errors import ConfigError
from lake_spark.options import BatchOptions

_sessions: dict[tuple[object, ...], tuple[Config, Session]] = {}


def make_lake(options: BatchOptions) -> None:
    """Make the embedded lake that is going to be written, if there is none. Tasks, and reads, never do that."""
    if is_embedded(options.url):
        Lake(options.url, **options.lake).get_config()


def session_of(options: BatchOptions) -> Session:
    """This process's session for these options: Python workers keep it from task to task.

    The lake's configuration is looked up each time: a worker outlives jobs, and nobody would find what it wrote to
    the storage of an older configuration. An embedded lake must be there: a task on another machine than the driver's
    would make an empty one.
    """
    settings = {**options.lake, "create": False}
    config = Lake(options.url, **settings).get_config()
    if config.get("Storage", "memory") == "memory":
        raise ConfigError(
            "this lake keeps its bodies in memory, which the processes of a Spark job cannot share: configure storage "
            'once, e.g. Lake(url).update_config({"Name": "my-lake", "Storage": "file", "BasePath": "/data/lake"})'
        )
    key = (options.url, *settings.values())
    known = _sessions.get(key)
    if known is None or known[0] != config:
        known = _sessions[key] = (config, Lake(options.url, config=config, **settings)._session)
    return known[1]


def options_of(given: Mapping[str, str]) -> BatchOptions:
    """A job's options; without a lake in them there is nothing to do."""
    options = BatchOptions.of(given)
    if not options.url:
        raise ConfigError(
            'no lake was named: set option("url", "redis://host:6379" or "file:DIR") or the environment\'s LAKE_URL '
            "(CREATE TABLE … USING lake loses its OPTIONS: use CREATE TEMPORARY VIEW)"
        )
    if is_embedded(options.url):
        # As the driver sees it: executors may have another current folder.
        url, in_url = split_embedded(options.url)
        options = dataclasses.replace(options, url=f"{url}?{urlencode(in_url)}" if in_url else url)
    return options
