"""Which backend serves a device, and whose policy plans for it: claim, probe, rank, and say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachecore.asking import shown
from cachecore.backend import BackendInfo
from cachecore.device import DeviceSpec
from cachecore.errors import NoBackendError, PluginError
from cachecore.policy import LayoutPolicy
from cachecore.probing import policy_of, probe_backend, unclaimed
from cachecore.ranking import (
    BackendRecord,
    PluginFailure,
    Selection,
    claimed_twice,
    is_named,
    no_backend_error,
    rank,
)

__all__ = ["Choice", "Overrule"]

Overrule = Callable[[DeviceSpec, tuple[BackendInfo, ...]], object]
"""The application's word: the name of a candidate, or None."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One device, the records there are, and what is forced. ``unused`` plugins are told when nothing serves."""

    device: DeviceSpec
    forced: str | None
    backends: tuple[BackendRecord, ...]
    unused: tuple[PluginFailure, ...]
    probe_limit_s: float

    def select(self, overrule: Overrule) -> Selection:
        """The record that serves; what :meth:`cachecore.PluginRegistry.select` promises."""
        candidates: list[BackendRecord] = []
        rejected: list[tuple[BackendRecord, str]] = []
        refused = claimed_twice(self.backends)
        for record in sorted(self.backends, key=rank):
            if self.forced and not is_named(record, self.forced):
                rejected.append((record, f"backend {self.forced!r} is forced"))
                continue
            reason = self._refusal(record, refused) or probe_backend(record.info, self.device, self.probe_limit_s)
            if reason is None:
                candidates.append(record)
            else:
                rejected.append((record, reason))
        if not candidates:
            raise no_backend_error(self.device, self.forced, rejected, self.backends, self.unused)
        chosen, why = self._winner(candidates, overrule)
        rejected.extend(
            (record, f"priority {record.info.priority}, {chosen.info.name!r} has {chosen.info.priority}")
            for record in candidates
            if record is not chosen
        )
        return Selection(self.device, chosen, why, tuple(candidates), tuple(rejected))

    def plan(self, overrule: Overrule) -> BackendRecord:
        """The record whose policy plans; what :meth:`cachecore.PluginRegistry.plan_backend` promises."""
        claimants: list[BackendRecord] = []
        rejected: list[tuple[BackendRecord, str]] = []
        policies: set[tuple[str, str]] = set()
        refused = claimed_twice(self.backends)
        for record in sorted(self.backends, key=rank):
            if self.forced and not is_named(record, self.forced):
                continue
            reason = self._refusal(record, refused) or unclaimed(record.info, self.device)
            policy = None if reason else policy_of(record.info)
            if isinstance(policy, LayoutPolicy):
                claimants.append(record)
                policies.add((policy.name, policy.version))
            else:
                rejected.append((record, reason or str(policy)))
        if not claimants:
            raise no_backend_error(self.device, self.forced, rejected, self.backends, self.unused)
        named = [record for record in claimants if self.device.type in record.info.device_types] or claimants
        if len(policies) == 1 or self.forced:
            return named[0]
        top = [record for record in named if record.info.priority == named[0].info.priority]
        return top[0] if len(top) == 1 else self._present(top, overrule)

    def _present(self, top: list[BackendRecord], overrule: Overrule) -> BackendRecord:
        """Where layouts differ, the record whose device is here; on a laptop somebody has to say."""
        try:
            return self.select(overrule).chosen
        except NoBackendError as error:
            who = [f"{record.info.name} ({record.plugin.distribution})" for record in top]
            told: tuple[str, ...] = getattr(error, "reasons", ())
            reasons = tuple(reason for reason in told if reason.startswith(tuple(f"{one}: " for one in who)))
            raise PluginError(
                f"backends {' and '.join(who)} all plan for {self.device}, each with a layout of its own, and no such "
                f"device is here to tell which is meant; say which with backend={top[0].info.name!r} or "
                f"CACHECORE_BACKEND={top[0].info.name}. What they say: {'; '.join(reasons)}",
                device=str(self.device),
                reasons=reasons,
            ) from error

    def _refusal(self, record: BackendRecord, refused: dict[str, str]) -> str | None:
        return None if self.forced and "@" in self.forced else refused.get(record.info.name)

    def _winner(self, candidates: list[BackendRecord], overrule: Overrule) -> tuple[BackendRecord, str]:
        if self.forced:
            if len(candidates) > 1:
                raise PluginError(
                    f"{self.forced!r} names {len(candidates)} backends of one distribution; uninstall one plugin"
                )
            return candidates[0], f"forced as {self.forced!r}"
        infos = tuple(record.info for record in candidates)
        name = overrule(self.device, infos)
        if name is not None:
            for record in candidates:
                if isinstance(name, str) and record.info.name == name:
                    return record, "chosen by the application's cachecore_choose_backend"
            raise PluginError(
                f"cachecore_choose_backend returned {shown(name)} for {self.device}; expected None or one of "
                f"{', '.join(info.name for info in infos)}"
            )
        best = candidates[0]
        if len(candidates) > 1 and candidates[1].info.priority == best.info.priority:
            names = " and ".join(f"{record.info.name!r} ({record.plugin.distribution})" for record in candidates[:2])
            raise PluginError(
                f"backends {names} both serve {self.device} with priority {best.info.priority}; "
                "say which with CACHECORE_BACKEND"
            )
        others = ", ".join(f"{record.info.name} {record.info.priority}" for record in candidates[1:])
        return best, f"priority {best.info.priority}" + (
            f", ahead of {others}" if others else ", the only one that serves"
        )
