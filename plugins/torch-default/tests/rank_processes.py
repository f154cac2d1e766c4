"""Processes that agree, or of which one fails: run as ``rank_processes.py gloo|nccl scenario...``.

Prints what every rank saw as JSON. A scenario is a function of one rank's communicator; it returns what
the rank saw, or raises, and its process ends right after. All are run in one interpreter that has imported
torch, in four forked processes each (gloo), or one for each of two devices (NCCL).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cachecore_torch_default import TorchCommunicator

from cachecore import (
    BlockCacheGeometry,
    CacheCoreError,
    KvCacheConfig,
    StandardLayoutPolicy,
    StateCacheRequest,
    agree,
    build_block_cache_plan,
)
from cachecore.agreement import confirm
from cachecore.kv import head_shard

BACKEND = sys.argv[1]
WORLD = {"gloo": 4, "nccl": 2}[BACKEND]
LIMIT_S = 2.0
DEAD = WORLD // 2
"""The rank that something happens to."""

TORN_DOWN = ("all_end_with_calls_that_nobody_answers",)
"""Scenarios whose ranks end as scripts do; in the others a rank's process is gone at once."""

SCENARIOS: dict[str, Callable[[TorchCommunicator], Any]] = {}


def scenario(step: Callable[[TorchCommunicator], Any]) -> Callable[[TorchCommunicator], Any]:
    """Run it too."""
    SCENARIOS[step.__name__] = step
    return step


def stage(rank: int, head_dim: int = 64) -> Any:
    """Layers of one of two pipeline stages, one with a recurrent state; half of the heads each."""
    layers, heads = range(5) if rank < 2 else range(5, 8), head_shard(8, 2, rank % 2)
    return build_block_cache_plan(
        kv=KvCacheConfig(
            layers=layers,
            num_kv_heads=8,
            head_dim=head_dim,
            dtype="bfloat16",
            tp_size=2,
            tp_rank=rank % 2,
        ),
        states=[
            StateCacheRequest(
                name="recurrent",
                shape=(heads.count, 64, 64),
                dtype="float32",
                axes=("head", "other", "other"),
                shard=heads,
                layers=[8 + rank // 2],
            )
        ],
        geometry=BlockCacheGeometry(16),
        device="cpu",
        policy=StandardLayoutPolicy(),
    )


def agreed(ranks: TorchCommunicator, timeout_s: float = LIMIT_S, **more: Any) -> Any:
    """What this rank agrees to; the smallest memory is rank 1's."""
    memory = (51 - 10 * (ranks.rank == 1)) << 20
    more = {"memory_nbytes": memory, "num_blocks": {"state": 16}, "timeout_s": timeout_s, "node": "one", **more}
    answer = agree(ranks, stage(ranks.rank), **more)
    return [dict(answer.counts), list(answer.spare_nbytes), answer.host_counts]


@scenario
def all_agree(ranks: TorchCommunicator) -> Any:
    first = agreed(ranks, timeout_s=30)
    confirm(ranks, timeout_s=30)
    return [
        first,
        agreed(ranks, timeout_s=30, host_memory_nbytes=1 << 20, host_num_blocks={"state": 1}),
        ranks.all_gather("", 30),
    ]


@scenario
def a_subgroup_agrees(ranks: TorchCommunicator) -> Any:
    group = dist.new_group([1, 3])
    if ranks.rank in (0, 2):
        return None
    return TorchCommunicator(group).all_gather(f"of {ranks.rank}", 30)


@scenario
def one_has_another_model(ranks: TorchCommunicator) -> Any:
    plans = stage(ranks.rank, head_dim=128 if ranks.rank == DEAD else 64)
    return agree(ranks, plans, memory_nbytes=1 << 30, context_length=100, timeout_s=30)


@scenario
def one_is_given_nonsense(ranks: TorchCommunicator) -> Any:
    memory = -1 if ranks.rank == DEAD else 1 << 30
    return agree(ranks, stage(ranks.rank), memory_nbytes=memory, context_length=100, timeout_s=30)


@scenario
def one_cannot_open(ranks: TorchCommunicator) -> Any:
    agreed(ranks, timeout_s=30)
    return confirm(ranks, MemoryError("none left") if ranks.rank == DEAD else None, timeout_s=30)


@scenario
def one_is_late_and_comes_again(ranks: TorchCommunicator) -> Any:
    try:
        if ranks.rank == DEAD:
            time.sleep(1.5 * LIMIT_S)
        ranks.all_gather("in time", LIMIT_S)
    except CacheCoreError as error:
        return [str(error), ranks.all_gather(f"again {ranks.rank}", 30)]
    return None


@scenario
def one_never_comes(ranks: TorchCommunicator) -> Any:
    return time.sleep(1.5 * LIMIT_S) if ranks.rank == DEAD else agreed(ranks)


@scenario
def rank_0_never_comes(ranks: TorchCommunicator) -> Any:
    return time.sleep(1.5 * LIMIT_S) if ranks.rank == 0 else agreed(ranks)


@scenario
def one_dies_before(ranks: TorchCommunicator) -> Any:
    if ranks.rank == DEAD:
        os._exit(9)
    return agreed(ranks)


@scenario
def rank_0_dies_before(ranks: TorchCommunicator) -> Any:
    if ranks.rank == 0:
        os._exit(9)
    return agreed(ranks)


@scenario
def one_dies_while_it_sends(ranks: TorchCommunicator) -> Any:
    if ranks.rank == DEAD:
        dist.send(torch.tensor([1000]), dst=0, tag=1)  # announces a text, and is gone
        os._exit(9)
    return agreed(ranks)


@scenario
def one_dies_waiting_for_the_answer(ranks: TorchCommunicator) -> Any:
    if ranks.rank == 3:
        time.sleep(LIMIT_S / 4)  # rank 0 cannot answer yet
    if ranks.rank == DEAD:
        dist.isend(torch.tensor([3]), dst=0, tag=1)
        time.sleep(LIMIT_S / 8)
        os._exit(9)
    return agreed(ranks)


@scenario
def rank_0_dies_before_it_answers(ranks: TorchCommunicator) -> Any:
    if ranks.rank == 0:
        for peer in range(1, WORLD):
            dist.recv(torch.zeros(1, dtype=torch.int64), src=peer, tag=1)
        os._exit(9)
    return agreed(ranks)


@scenario
def one_dies_and_another_is_slow(ranks: TorchCommunicator) -> Any:
    if ranks.rank == DEAD:
        os._exit(9)
    if ranks.rank == WORLD - 1:
        time.sleep(LIMIT_S / 4)  # rank 0 knows of the dead one already
    return agreed(ranks)


@scenario
def one_comes_after_rank_0_gave_up_waiting(ranks: TorchCommunicator) -> Any:
    if ranks.rank == DEAD:
        time.sleep(0.75 * LIMIT_S)
    return agreed(ranks)


@scenario
def all_end_with_calls_that_nobody_answers(ranks: TorchCommunicator) -> Any:
    if ranks.rank == DEAD:
        time.sleep(2 * LIMIT_S)
        os._exit(9)
    sys.slow_end = SlowEnd()  # type: ignore[attr-defined]
    return agreed(ranks)


class SlowEnd:
    """Keeps the interpreter's end going on until the rank that hangs is gone."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep, seconds: float = 2 * LIMIT_S) -> None:
        sleep(seconds)


@scenario
def one_dies_between_two_rounds(ranks: TorchCommunicator) -> Any:
    agreed(ranks, timeout_s=30)
    if ranks.rank == DEAD:
        os._exit(9)
    return confirm(ranks, timeout_s=LIMIT_S)


@scenario
def one_dies_after(ranks: TorchCommunicator) -> Any:
    answer = agreed(ranks)
    if ranks.rank == DEAD:
        os._exit(9)
    return answer


def run_rank(name: str, rank: int, folder: Path) -> None:
    """Be one rank; write what it saw and how long it took."""
    torch.set_num_threads(1)
    dist.init_process_group(
        BACKEND, init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    ranks = TorchCommunicator(device=None if BACKEND == "gloo" else f"cuda:{rank}")
    if BACKEND == "gloo":
        dist.barrier()
    else:
        ranks.all_gather("connections are made on first use", 60)
    started = time.monotonic()
    try:
        saw = {"answer": SCENARIOS[name](ranks)}
    except CacheCoreError as error:
        saw = {"error": f"{type(error).__name__}: {error}", "missing": getattr(error, "missing", None)}
    saw["seconds"] = time.monotonic() - started
    (folder / f"{rank}.json").write_text(json.dumps(saw, default=str), encoding="utf-8")


def run_scenario(name: str) -> list[Any]:
    """What every rank saw; None for one that died."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if not child:
                end = 1
                try:
                    run_rank(name, rank, Path(folder))
                    end = 0
                finally:
                    os._exit(end)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return read_answers(Path(folder))


def run_scenario_in_interpreters(name: str) -> list[Any]:
    """What every rank saw, each of which is an interpreter that ends as scripts do; and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, BACKEND, name]
        children = [subprocess.Popen([*command, str(rank), folder]) for rank in range(WORLD)]
        ends = [child.wait() for child in children]
        return [{**(saw or {}), "end": end} for saw, end in zip(read_answers(Path(folder)), ends, strict=True)]


def read_answers(folder: Path) -> list[Any]:
    """What the ranks wrote."""
    files = [folder / f"{rank}.json" for rank in range(WORLD)]
    return [json.loads(file.read_text(encoding="utf-8")) if file.exists() else None for file in files]


if __name__ == "__main__":
    if sys.argv[-1].startswith(os.sep):
        run_rank(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        sys.exit(3)
    run = {True: run_scenario_in_interpreters, False: run_scenario}
    print(json.dumps({name: run[name in TORN_DOWN](name) for name in sys.argv[2:]}))
