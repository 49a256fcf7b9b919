"""Every error of the lake, in one tree.

LakeError
├── ConfigError (ValueError)            a URL, an option or `lake.setting` is wrong
├── InvalidInput (ValueError)           what the caller passed is refused; nothing was stored
│   ├── InvalidCatalog                  a catalog name
│   ├── InvalidPath                     a field path or a file path
│   ├── InvalidTsSeq                    a time sequence
│   ├── InvalidBody                     not JSON, not a patch, too deep
│   └── BodyTooLarge                    over `max_body_bytes`
├── NotFound (LookupError)
│   ├── CatalogNotFound                 nothing visible under that name
│   ├── LakeFileNotFound                no such file in the catalog
│   ├── DeltaNotFound                   no such delta in the log
│   └── HistoryGone                     the log no longer reaches back to that version
├── PendingError                        open writes stand before what was asked for (retryable)
├── ConflictError                       the catalog moved past `expected_version`
├── FencedError                         the write expired and the log moved on (retryable: nothing is in)
├── OutcomeUnknown                      the write may or may not be in; its body is kept
├── TransactionAborted                  the job's lease ran out or it was given up; nothing is visible
├── MergeError                          a delta cannot be applied
├── CorruptObject                       an object is damaged, swapped, truncated or under another key
├── IndexFailure
│   ├── IndexUnavailable (ConnectionError)   Redis cannot be reached or does not answer (retryable)
│   └── IndexDenied (PermissionError)        Redis refuses: password, rights, read only, out of memory
└── StorageFailure
    ├── ObjectMissing (LookupError)          no object under that key
    ├── ObjectExists                         put-if-absent found an object
    ├── StorageUnavailable (ConnectionError) the store cannot be reached or does not answer (retryable)
    └── StorageDenied (PermissionError)      credentials, rights or the bucket are wrong

Every error has `.retryable`: whether the same call may be made again as it was. Messages name the
catalog, TsSeq, object, host and port that matter, and never a password or a key.
"""

from __future__ import annotations


class LakeError(Exception):
    """Anything the lake reports."""

    retryable = False


class ConfigError(LakeError, ValueError):
    """A URL, an option or the lake's setting is wrong."""


class InvalidInput(LakeError, ValueError):
    """What the caller passed is refused; nothing was stored."""


class InvalidCatalog(InvalidInput):
    """Not a catalog name: 1 to 256 UTF-8 bytes without control characters."""


class InvalidPath(InvalidInput):
    """Not a field path or not a file path."""


class InvalidTsSeq(InvalidInput):
    """Not a time sequence."""


class InvalidBody(InvalidInput):
    """Not JSON, not a patch of the named kind, or nested too deep."""


class BodyTooLarge(InvalidInput):
    """A body over `max_body_bytes`."""


class NotFound(LakeError, LookupError):
    """What was asked for is not in the lake."""


class CatalogNotFound(NotFound):
    """Nothing is visible under that catalog name."""


class LakeFileNotFound(NotFound):
    """The catalog has no such file."""


class DeltaNotFound(NotFound):
    """The catalog's log has no such delta."""


class HistoryGone(NotFound):
    """History was cleared: the log no longer reaches back to that version."""


class PendingError(LakeError):
    """Open writes stand before what was asked for: wait, or read with `pending="prefix"`."""

    retryable = True


class ConflictError(LakeError):
    """A catalog is no longer at the version the write expected; nothing of the write is visible."""


class FencedError(LakeError):
    """The write's pending expired and the log moved on; nothing of it is in."""

    retryable = True


class OutcomeUnknown(LakeError):
    """The write may or may not be in: read before you write again. Its body was kept."""


class TransactionAborted(LakeError):
    """A job's lease ran out or it was given up; nothing of it is visible."""


class MergeError(LakeError):
    """A delta cannot be applied to the document before it."""


class CorruptObject(LakeError):
    """An object is damaged, truncated, swapped, or was written under another password."""


class IndexFailure(LakeError):
    """The index Redis did not do what was asked, unless `may_have_run` says that nobody knows."""

    may_have_run = False


class IndexUnavailable(IndexFailure, ConnectionError):
    """The index Redis cannot be reached or does not answer in time."""

    retryable = True


class IndexDenied(IndexFailure, PermissionError):
    """The index Redis refuses: wrong password, no right, read only, or out of memory."""


class StorageFailure(LakeError):
    """The object store did not do what was asked."""


class ObjectMissing(StorageFailure, LookupError):
    """No object is stored under that key."""


class ObjectExists(StorageFailure):
    """A put-if-absent found an object under that key."""


class StorageUnavailable(StorageFailure, ConnectionError):
    """The object store cannot be reached or does not answer in time."""

    retryable = True


class StorageDenied(StorageFailure, PermissionError):
    """The object store refuses: credentials, rights, or a bucket that is not there."""
