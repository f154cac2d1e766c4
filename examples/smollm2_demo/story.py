"""What the demo does with the model: one prefix, several questions, forks, a swap halfway, beam search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from cachecore_transformers import CachecoreCache, CachePool
from transformers import DynamicCache

from smollm2_demo.model import Loaded
from smollm2_demo.pair import Pair, Tally
from smollm2_demo.progress import Stage

__all__ = ["NUM_FORKS", "Story", "Swapped", "num_tokens", "tell"]

NUM_FORKS = 2
NUM_BEAMS = 3


@dataclass(frozen=True, slots=True)
class Swapped:
    """One swap out and back in: what moved, and what was seen meanwhile."""

    num_blocks: int
    num_back_in_place: int
    used_meanwhile: dict[str, int]


@dataclass(slots=True)
class Story:
    """What came out of the run."""

    prefix_tokens: int = 0
    answers: list[list[str]] = field(default_factory=list)
    beams: list[str] = field(default_factory=list)
    shared_blocks: dict[str, int] = field(default_factory=dict)
    swapped: Swapped | None = None
    left_over: dict[str, int] = field(default_factory=dict)


def num_tokens(prompts: list[list[int]], new: int) -> int:
    """Tokens of the longest sequence of the run."""
    return max(map(len, prompts)) + 3 * new


def tell(loaded: Loaded, pool: CachePool, tally: Tally, *, new: int, inject_fault: bool) -> Story:
    """Run everything; ``new`` tokens are decoded in each of the three stages."""
    story = Story()
    prefix = _common_prefix(loaded.prompts)
    story.prefix_tokens = len(prefix)
    pair = Pair(loaded.model, pool, tally)
    with Stage(f"prefill of the common prefix, {len(prefix)} tokens"):
        pair.call(torch.tensor([prefix]), stage="prefix")
    with Stage(f"fork into {len(loaded.prompts)} sequences; prefill of their questions"):
        pair.fork(len(loaded.prompts))
        logits = pair.call(*_left_padded([ids[len(prefix) :] for ids in loaded.prompts]), stage="questions")
    written: list[torch.Tensor] = []
    logits = _decode(pair, logits, new, written, "greedy decoding")
    pair.fork(NUM_FORKS)
    story.shared_blocks = _shared(pool)
    written = [tokens.repeat_interleave(NUM_FORKS, dim=0) for tokens in written]
    logits = logits.repeat_interleave(NUM_FORKS, dim=0)
    torch.manual_seed(7)
    logits = _decode(pair, logits, new, written, f"sampling, {NUM_FORKS} forks of each", temperature=0.8)
    with Stage("swap of every block to the host tier and back"):
        story.swapped = _swap(pair.blocks, pool)
    if inject_fault:
        _flip_a_value(pool, pair.blocks)
    _decode(pair, logits, new, written, "sampling, after the swap", temperature=0.8)
    ids = torch.cat(written, dim=1).tolist()
    texts = [loaded.text(answer) for answer in ids]
    story.answers = [texts[start : start + NUM_FORKS] for start in range(0, len(texts), NUM_FORKS)]
    pair.blocks.release()
    story.beams = _beam_search(loaded, pool, tally, new)
    story.left_over = {**pool.num_used(), **{f"{name} on the host": n for name, n in pool.num_used(host=True).items()}}
    return story


def _common_prefix(prompts: list[list[int]]) -> list[int]:
    """The tokens that all prompts start with."""
    length = 0
    for tokens in zip(*prompts, strict=False):
        if len(set(tokens)) > 1:
            break
        length += 1
    return prompts[0][:length]


def _left_padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of one batch; what is shorter is padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def _decode(
    pair: Pair, logits: torch.Tensor, new: int, written: list[torch.Tensor], title: str, *, temperature: float = 0.0
) -> torch.Tensor:
    with Stage(f"{title}: {new} tokens in {len(logits)} sequences", new) as stage:
        for _ in range(new):
            if temperature:
                tokens = torch.multinomial((logits.float().cpu() / temperature).softmax(-1), 1)
            else:
                tokens = logits.argmax(-1, keepdim=True).cpu()
            written.append(tokens)
            logits = pair.call(tokens, stage=title)
            stage.tick()
    return logits


def _shared(pool: CachePool) -> dict[str, int]:
    """Blocks that more than one sequence holds, of every group."""
    allocators = {name: group.allocator for name, group in pool.groups.items()}
    return {
        name: sum(allocator.references(block) > 1 for block in range(allocator.num_blocks))
        for name, allocator in allocators.items()
    }


def _swap(cache: CachecoreCache, pool: CachePool) -> Swapped:
    """Move all sequences out, wipe the device blocks they left, and move them back into others."""
    out = cache.swap_out()
    meanwhile = pool.num_used()
    for name, pairs in out.items():
        pool.engine.zero_blocks(pairs.src, group=name).wait()
    back = cache.swap_in()
    moved = {(name, host): block for name, pairs in out.items() for block, host in pairs}
    in_place = sum(moved[name, host] == block for name, pairs in back.items() for host, block in pairs)
    return Swapped(len(moved), in_place, meanwhile)


def _flip_a_value(pool: CachePool, cache: CachecoreCache) -> None:
    """Change one number in one block that the first sequence reads, as a bad copy would."""
    name, tables = next(iter(cache.sequences.tables.items()))
    group = pool.groups[name]
    entry = tables.tables[0][0] * (group.block_size // group.entry_tokens)
    layer = next(layer.layer for layer in pool.layers if layer.group == name)
    pool.engine.block_caches.layer("v_cache", layer)[entry].view(-1)[0] += 1.0


def _beam_search(loaded: Loaded, pool: CachePool, tally: Tally, new: int) -> list[str]:
    """``generate()`` with beams: they are reordered on block tables after every token."""
    ids, mask = _left_padded(loaded.prompts[:2])
    width = ids.shape[1]
    title = f"generate() with {NUM_BEAMS} beams, {new} tokens"
    with Stage(title), CachecoreCache(pool) as blocks:
        runs: list[Any] = [
            loaded.model.generate(
                input_ids=ids.to(loaded.model.device),
                attention_mask=mask.to(loaded.model.device),
                past_key_values=past,
                num_beams=NUM_BEAMS,
                do_sample=False,
                max_new_tokens=new,
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=0,
            )
            for past in (blocks, DynamicCache(config=loaded.model.config))
        ]
        tally.compare(title, runs[0].logits, runs[1].logits)
    return [loaded.text(answer) for answer in runs[0].sequences[:, width:].tolist()]
