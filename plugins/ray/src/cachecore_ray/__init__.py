"""Ray actors as the ranks of one engine: each builds and keeps its own plans, and only numbers travel.

:class:`CacheRank` is what an actor's class inherits; :func:`agree_on_actors` is called on the driver.
"""

from __future__ import annotations

from cachecore_ray.driver import agree_on_actors
from cachecore_ray.ranks import CacheRank

__version__ = "0.1.0"

__all__ = ["CacheRank", "agree_on_actors"]
