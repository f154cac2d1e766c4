"""A deliberately wrong backend, and where and how the kit must catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, DeviceSpec, LayoutPolicy, StandardLayoutPolicy
from cachecore.ranking import PluginRecord
from cachecore.reference import BYTE_COPY
from cachecore.testing import Subject
from cachecore.transfer import ByteCopy


@dataclass(frozen=True, slots=True)
class Mutant:
    """``caught_by`` is ``level/check``; ``says`` stands in the message of that check."""

    name: str
    subject: Callable[[], Subject]
    caught_by: str
    says: str

    @property
    def level(self) -> str:
        """The level that must be the first to fail."""
        return self.caught_by.partition("/")[0]


def byte_subject(
    backend: Callable[[], ByteBackend] = ByteBackend,
    *,
    copy: Callable[..., Any] | None = None,
    policy: Callable[[], LayoutPolicy] = StandardLayoutPolicy,
    probe: Callable[[DeviceSpec], Any] = lambda device: None,
    probe_limit_s: float = 5.0,
) -> Subject:
    """:class:`ByteBackend` with one thing changed."""
    info = BackendInfo("bytes", ("null",), 0, probe, policy, lambda: _with_policy(backend(), policy))
    record = BYTE_COPY if copy is None else BlockCopyInfo("wrong", 50, lambda src, dst: None, copy)
    return Subject(
        info,
        PluginRecord("mutant", "cachecore-mutant", "1"),
        DeviceSpec("null"),
        (record,),
        probe_limit_s=probe_limit_s,
    )


def _with_policy(backend: ByteBackend, policy: Callable[[], LayoutPolicy]) -> ByteBackend:
    if policy is not StandardLayoutPolicy:
        backend.policy = policy()
    return backend


class WrongCopy(ByteCopy):
    """A copy over segments that subclasses change."""

    path = "wrong"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.context = context

    def __call__(self, pairs, after=()):
        for completion in after:
            completion.synchronize()
        context = self.context
        for number, (src, dst) in enumerate(pairs):
            for index, one in enumerate(context.segments):
                for page in range(one.num_pages):
                    at = one.src_start + src * one.src_block_stride + page * one.src_page_stride
                    to = one.dst_start + dst * one.dst_block_stride + page * one.dst_page_stride
                    self.run(number, index, one, page, at, to)
        return _done()

    def run(self, number, index, one, page, at, to):
        """Move one run of bytes."""
        self.write(one, to, self.read(one, at, one.nbytes))

    def read(self, one, at, nbytes):
        return self.context.src_backend.read(self.context.src, one.src_pool, at, nbytes)

    def write(self, one, to, data):
        self.context.dst_backend.write(self.context.dst, one.dst_pool, to, data)

    def old(self, one, to, nbytes):
        """What stands at the destination."""
        return self.context.dst_backend.read(self.context.dst, one.dst_pool, to, nbytes)


def _done():
    from cachecore import COMPLETED

    return COMPLETED
