"""What an actor does to be a rank: build its plans, report numbers, plan again at the agreed counts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import ray

from cachecore import Agreement, AgreementError, CacheCoreError, sizing
from cachecore.budget import Plans
from cachecore.report import rank_report

__all__ = ["CacheRank"]


class CacheRank(ABC):
    """One rank. Inherit it in the class that becomes an actor; the driver calls the rest."""

    _plans: Plans | None = None
    _budget: int = 0
    _agreement: Agreement | None = None
    _none_yet: str = "no counts are agreed on yet; call agree_on_actors() on the driver"

    @abstractmethod
    def build_cache_plans(self) -> Plans:
        """Plan what this rank's operators need; the plans stay here."""

    @abstractmethod
    def cache_memory(self) -> Mapping[str, Any]:
        """What only this rank knows: ``memory_nbytes``, and ``host_memory_nbytes`` where there is a host tier.

        Any argument of :func:`cachecore.agree` may stand here; it goes before what the driver was given.
        """

    @property
    def cache_plans(self) -> Plans:
        """The plans that the last agreement is of."""
        self._check_agreed()
        return self._plans or ()

    @property
    def cache_agreement(self) -> Agreement:
        """What was agreed; raises :class:`~cachecore.errors.AgreementError` with the reason when nothing is."""
        return self._check_agreed()

    def report_caches(self, rank: int, shared: str) -> str:
        """Build the plans and report what they cost. Called by the driver; ``shared`` is JSON, as the answer is."""
        self.lose_agreement(f"rank {rank} has reported, but counts are not agreed on yet")
        try:
            node = {"node": ray.get_runtime_context().get_node_id()}
            self._plans = self.build_cache_plans()
            memory = self.cache_memory()
            if not isinstance(memory, Mapping):
                raise TypeError(f"cache_memory() must return a mapping of arguments of agree(), not {memory!r}")
            report = rank_report(self._plans, **{**node, **json.loads(shared), **memory})
        except (CacheCoreError, TypeError) as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"})
        self._budget = report["budget"]
        return json.dumps(report)

    def take_agreement(self, rank: int, agreed: str) -> str:
        """Plan again at the agreed counts and keep them. Called by the driver; answers with the bytes taken."""
        agreement = Agreement(**json.loads(agreed))
        plans = self._plans
        if plans is None:
            raise AgreementError(f"rank {rank} has no plans; it was started anew since it reported", rank=rank)
        counts = agreement.counts_of(plans)
        sizing.fit(plans, memory_nbytes=self._budget, num_blocks=counts)
        self._agreement = agreement
        return json.dumps(sizing.reserved_nbytes(plans, counts))

    def lose_agreement(self, reason: str) -> None:
        """Forget what was agreed: another rank is lost. Called by the driver; override it to stop serving too."""
        self._agreement = None
        self._none_yet = reason

    def _check_agreed(self) -> Agreement:
        if self._agreement is None:
            raise AgreementError(self._none_yet)
        return self._agreement
