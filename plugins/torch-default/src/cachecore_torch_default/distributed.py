"""The ranks of a ``torch.distributed`` process group, for :func:`cachecore.agree`.

Every rank sends its text to rank 0, gets all of them back or the names of those that did not come, and
acknowledges that. Plain sends and receives: a collective would hang or fail on the living ranks without
saying who.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from cachecore import AgreementError, EngineStateError, PlanError
from cachecore.meaning import seconds
from cachecore_torch_default.peer_calls import Outcome, PeerCalls, next_outcome

__all__ = ["TorchCommunicator"]

_LONGEST_TEXT = 1 << 30
"""More than a report of all ranks has; a longer one was not written by a rank of ours."""

_MARK = "="
"""Stands before every text: not every backend sends tensors without elements."""


class TorchCommunicator:
    """A :class:`cachecore.agreement.Communicator` over a process group: gloo on CPU tensors, NCCL on device tensors.

    ``group`` is the default group unless given; make one communicator for it. ``device`` is where the
    bytes travel: the CPU if the group serves it (gloo), otherwise it must be given, such as this
    rank's ``cuda:0``. gloo notices at once that a process is gone; NCCL notices nothing, so the limit
    decides, and its pending receive stays on the device until the process ends. NCCL was verified on
    two H200 (torch 2.11, CUDA 13, 2026-11-29).
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise EngineStateError("torch.distributed has no process group; call init_process_group() first")
        if not isinstance(group, dist.ProcessGroup) and group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            raise TypeError(f"group must be a torch.distributed process group, not {group!r}")
        self._group: Any = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self._group)
        self.world_size = dist.get_world_size(self._group)
        if self.rank < 0:
            raise PlanError("this process is no member of the group; make a communicator on its members only")
        if device is None:
            served = dist.get_backend_config(self._group)
            if "cpu:" not in served:
                raise PlanError(f"this group ({served}) serves no CPU tensors; give device=, the one of this rank")
            device = "cpu"
        self._device = torch.device(device)
        self._calls = PeerCalls(self._group, self._device)
        self._round = 0

    def all_gather(self, text: str, timeout_s: float) -> list[str]:
        """Every rank's ``text``, in rank order, on every rank.

        Returns or raises within ``timeout_s``. Rank 0 waits half of that for the others and the rest
        until all that are alive have heard its answer, so that it may end right after. A rank that comes
        later still gets the same error when it comes, and the next round may succeed; one whose process
        is gone has left the group for good.

        Raises
        ------
        AgreementError
            Naming the ranks that are missing, late or dead (``missing``).
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a string, not {text!r}")
        timeout_s = seconds(timeout_s, "timeout_s")
        self._round += 1
        if self.world_size == 1:
            return [text]
        deadline = time.monotonic() + timeout_s
        return self._lead(text, timeout_s / 2, deadline) if self.rank == 0 else self._follow(text, timeout_s)

    def _lead(self, text: str, limit_s: float, deadline: float) -> list[str]:
        peers = range(1, self.world_size)
        texts, gone = self._collect(peers, limit_s)
        texts[0] = text
        missing = sorted(gone) or [rank for rank in range(self.world_size) if rank not in texts]
        answer: dict[str, Any] = {"texts": [texts.get(rank) for rank in range(self.world_size)], "missing": missing}
        if missing:
            verb = f"{', '.join(map(str, missing))} {'is' if len(missing) == 1 else 'are'}"
            why = f"gone ({_cause(gone[missing[0]])})" if gone else f"not there within {limit_s:g} s"
            answer = {"told": f"rank {verb} {why}; see the log of that process", "missing": missing}
        told = json.dumps(answer)
        heard: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        for peer in peers:  # also to those that are late: they are told when they come
            self._calls.start(peer, partial(self._answer, told, peer, self._round), heard)
        waiting = set(peers) - set(gone)  # a process that ended before these have heard would look gone to them
        while waiting and (one := next_outcome(heard, deadline)) is not None:
            waiting.discard(one[0])
        return _read(answer)

    def _collect(self, peers: range, limit_s: float) -> tuple[dict[int, str], dict[int, Exception]]:
        """The texts that came in time, and the peers that are gone; the others are waited for even then."""
        limit = time.monotonic() + limit_s
        came: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        for peer in peers:
            self._calls.start(peer, partial(self._receive, peer, self._round), came)
        texts: dict[int, str] = {}
        gone: dict[int, Exception] = {}
        while len(texts) + len(gone) < len(peers) and (one := next_outcome(came, limit)) is not None:
            peer, outcome = one
            if isinstance(outcome, Exception):
                gone[peer] = outcome
            else:
                texts[peer] = outcome
        return texts, gone

    def _answer(self, told: str, peer: int, number: int) -> str:
        self._send(told, peer, number)
        return self._receive(peer, number)

    def _follow(self, text: str, timeout_s: float) -> list[str]:
        number = self._round  # the thread may outlive this round

        def ask() -> str:
            self._send(text, 0, number)
            answer = self._receive(0, number)
            with suppress(Exception):  # rank 0 ended while it waited for this; its answer is there
                self._send("heard", 0, number)
            return answer

        answered: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        self._calls.start(0, ask, answered)
        one = next_outcome(answered, time.monotonic() + timeout_s)
        if one is None:
            raise AgreementError(
                f"rank 0 did not answer within {timeout_s:g} s; see the log of that process", missing=[0]
            )
        outcome = one[1]
        if isinstance(outcome, Exception):
            told = f"rank 0 is gone ({_cause(outcome)}); see the log of that process"
            raise AgreementError(told, missing=[0]) from outcome
        return _read(json.loads(outcome))

    def _send(self, text: str, peer: int, number: int) -> str:
        payload = torch.frombuffer(bytearray(f"{_MARK}{text}".encode()), dtype=torch.uint8).to(self._device)
        for tensor in (torch.tensor([len(payload)], dtype=torch.int64, device=self._device), payload):
            dist.send(tensor, dst=dist.get_global_rank(self._group, peer), group=self._group, tag=number)
        return text

    def _receive(self, peer: int, number: int) -> str:
        source = dist.get_global_rank(self._group, peer)
        size = torch.zeros(1, dtype=torch.int64, device=self._device)
        dist.recv(size, src=source, group=self._group, tag=number)
        length = int(size.item())
        if not 0 < length <= _LONGEST_TEXT:
            raise AgreementError(f"rank {peer} announced a text of {length} bytes; it runs other code", rank=peer)
        payload = torch.zeros(length, dtype=torch.uint8, device=self._device)
        dist.recv(payload, src=source, group=self._group, tag=number)
        return bytes(payload.tolist()).decode().removeprefix(_MARK)


def _read(answer: dict[str, Any]) -> list[str]:
    if answer["missing"]:
        raise AgreementError(answer["told"], missing=answer["missing"])
    return list(answer["texts"])


def _cause(error: Exception) -> str:
    """The first sentence of what a backend says; the rest is advice to it."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0].split('. ')[0][:200]}"
