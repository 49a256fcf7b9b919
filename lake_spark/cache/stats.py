"""What a cache did since its process started it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts of one cache in this process. `evictions` are entries dropped to make room."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    errors: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        """Hits among all lookups; 0.0 before the first."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0
