"""Bytes first: a way that moves a wrong one is not measured."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from cachecore import BlockPairs, PluginError
from cachecore_torch_default.bench.ways import Move, Subject
from cachecore_torch_default.tensors import synchronize

__all__ = ["check_bytes", "fill"]

_POISON = 0xA5


def fill(subject: Subject, seed: int = 7) -> None:
    """Random bytes everywhere on the source's side, poison on the other."""
    engine = subject.engine
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, generator=generator)
    for host in (False, True):
        for pool in engine.allocation(host=host).pools:
            flat = pool.view(-1)
            if host == (subject.direction == "swap_in") or subject.direction == "copy":
                for start in range(0, flat.numel(), noise.numel() - 3):  # no period of the layout's
                    part = flat[start : start + noise.numel() - 3]
                    part.copy_(noise[: part.numel()])
            else:
                flat.fill_(_POISON)


def check_bytes(subject: Subject, name: str, move: Move, pairs: BlockPairs) -> None:
    """Poison the destination blocks, move, and compare every byte of them and every byte that must not change.

    Raises
    ------
    PluginError
        Naming the way and the pool.
    """
    engine = subject.engine
    host = subject.direction == "swap_out"
    target = engine.allocation(host=host)
    blocks = torch.frombuffer(array("q", pairs.dst), dtype=torch.int64)
    for pool in target.pools:
        _blocks(pool, subject, host=host)[:, blocks.to(pool.device)] = _POISON
    before = [pool.clone() for pool in target.pools]
    move(pairs)
    synchronize(engine.allocation().pools[0].device)  # not the target's: that may be the host
    kept = torch.ones(_blocks(target.pools[0], subject, host=host).shape[1], dtype=torch.bool)
    kept[blocks] = False
    for number, (pool, old) in enumerate(zip(target.pools, before, strict=True)):
        now, then = _blocks(pool, subject, host=host), _blocks(old, subject, host=host)
        if not torch.equal(now[:, kept.to(pool.device)], then[:, kept.to(pool.device)]):
            raise PluginError(f"{name}: {subject.direction} changed a block of pool {number} that it must not touch")
    for src, dst in subject.tensors:
        for src_block, dst_block in pairs:
            if not torch.equal(dst[dst_block].cpu(), src[src_block].cpu()):
                raise PluginError(
                    f"{name}: {subject.direction} of block {src_block} to block {dst_block} moved a wrong byte"
                )


def _blocks(pool: Tensor, subject: Subject, *, host: bool) -> Tensor:
    """A pool as ``(outer, blocks, bytes)``."""
    layout = subject.engine.allocation(host=host).layout
    pages = subject.pages_per_block // layout.pages_per_entry
    outer, entries, inner = pool.shape
    return pool.view(outer, entries // pages, inner * pages)
