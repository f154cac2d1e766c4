"""Standard and quantised K/V descriptors: what a layer's keys and values take in a kernel page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cachecore.asking import asked, shown
from cachecore.dtypes import dtype_name
from cachecore.errors import PlanError, PluginError
from cachecore.meaning import REPLICATED, HeadShard, not_negative, positive, several, whole
from cachecore.policy import KvStorage, LayoutPolicy
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec, LayerRowMap

__all__ = ["QUANT_POLICIES", "KvCacheConfig", "head_shard", "kv_specs"]

QUANT_POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "none": "plain",
        "int8": "int8_asym",
        "int4": "int4_asym",
        "turbo_quant": "turbo",
        "fp8": "fp8",
        "fp8_e4m3": "fp8",
        "fp8_e5m2": "fp8_e5m2",
        "fp8_ds_mla": "fp8_ds_mla",
    }
)
"""Quantisation policy to the format of the stored bytes."""

_CODES = MappingProxyType({0: "none", 4: "int4", 8: "int8", 16: "fp8", 17: "fp8_e5m2", 42: "turbo_quant"})

MOST_LAYERS = 1 << 20
"""More layers than this are a mistake."""

_DS_MLA_TILE = 128
"""``fp8_ds_mla`` keeps one float32 scale for 128 latent elements. Source: FlashMLA README, FP8 KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheConfig:
    """Standard K/V of the layers of one group, on one tensor-parallel rank.

    ``layers`` are global layer ids, or a count. ``num_kv_heads`` counts the model's heads, over all
    ranks. With ``latent_dim`` the layers are MLA: one latent of ``latent_dim + rope_dim`` elements a
    token on every rank, no V; fp8 policies store each element in a byte. ``sparse_mla`` marks a model
    with an index top-k: its fp8 policy means the 656-byte ``fp8_ds_mla`` latent, and any other
    quantisation is refused.
    """

    layers: int | Sequence[int]
    dtype: str
    num_kv_heads: int = 1
    head_dim: int | None = None
    v_head_dim: int | None = None
    quant_policy: str | int = "none"
    tp_size: int = 1
    tp_rank: int = 0
    latent_dim: int | None = None
    rope_dim: int = 0
    sparse_mla: bool = False
    group: str = "full"

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.group, str) or not self.group:
            raise PlanError(f"group is {self.group!r}; expected a non-empty string")
        if not isinstance(self.sparse_mla, bool):
            raise TypeError(f"sparse_mla must be a bool, not {self.sparse_mla!r}")
        layers = range(_layer_count(self.layers)) if isinstance(self.layers, int) else self.layers
        put(self, "layers", LayerRowMap(several(layers, "layers")).layers)
        put(self, "dtype", dtype_name(self.dtype))
        put(self, "quant_policy", _policy_name(self.quant_policy))
        for name in ("num_kv_heads", "tp_size"):
            put(self, name, positive(getattr(self, name), name))
        put(self, "tp_rank", _check_rank(self.tp_rank, self.tp_size))
        if self.latent_dim is None:
            if self.head_dim is None:
                raise PlanError("head_dim is missing; give head_dim, or latent_dim and rope_dim for MLA")
            put(self, "head_dim", positive(self.head_dim, "head_dim"))
            if self.v_head_dim is not None:
                put(self, "v_head_dim", not_negative(self.v_head_dim, "v_head_dim"))
            if self.sparse_mla:
                raise PlanError("sparse_mla needs an MLA cache; give latent_dim and rope_dim")
        else:
            put(self, "latent_dim", positive(self.latent_dim, "latent_dim"))
            put(self, "rope_dim", not_negative(self.rope_dim, "rope_dim"))
        put(self, "quant_policy", self._final_policy())

    def _final_policy(self) -> str:
        """Which of the generic fp8 policy and the MLA layout wins is settled here, once."""
        policy = str(self.quant_policy)
        if self.latent_dim is None:
            if policy == "fp8_ds_mla":
                raise PlanError("quant_policy 'fp8_ds_mla' is a layout of MLA latents; give latent_dim and rope_dim")
            return policy
        if policy in ("none", "fp8_ds_mla"):
            return policy
        if policy == "fp8" and self.sparse_mla:
            return "fp8_ds_mla"
        if policy in ("fp8", "fp8_e5m2") and not self.sparse_mla:
            return policy
        hint = "none, fp8" if self.sparse_mla else "none, fp8, fp8_e5m2, fp8_ds_mla"
        raise PlanError(
            f"quant_policy {policy!r} cannot hold an MLA latent; expected one of {hint}", quant_policy=policy
        )


def head_shard(num_heads: int, tp_size: int, tp_rank: int) -> HeadShard:
    """The heads of one rank: an equal part, or one head shared by equally many ranks.

    >>> head_shard(8, 16, 5)
    HeadShard(total=8, first=2, count=1, replica=1)
    """
    positive(num_heads, "num_heads"), positive(tp_size, "tp_size"), _check_rank(tp_rank, tp_size)
    if num_heads % tp_size == 0:
        count = num_heads // tp_size
        return HeadShard(num_heads, tp_rank * count, count)
    if tp_size % num_heads == 0:
        ranks = tp_size // num_heads
        return HeadShard(num_heads, tp_rank // ranks, 1, tp_rank % ranks)
    raise PlanError(
        f"{num_heads} KV heads on {tp_size} tensor-parallel ranks: the ranks neither divide the heads nor are a "
        "multiple of them; choose a tensor-parallel size that is",
        num_kv_heads=num_heads,
        tp_size=tp_size,
    )


def kv_specs(config: KvCacheConfig, geometry: BlockCacheGeometry, policy: LayoutPolicy) -> tuple[CacheTensorSpec, ...]:
    """``k_cache``, ``v_cache``, then ``quant_0`` and ``quant_1`` when the format keeps scales beside the bytes.

    A page is ``(block, heads, dim)`` or in the axis order that ``policy`` wants.
    Raises :class:`~cachecore.errors.PlanError` when the device cannot hold the format.
    """
    for value, kind in ((config, KvCacheConfig), (geometry, BlockCacheGeometry), (policy, LayoutPolicy)):
        if not isinstance(value, kind):
            raise TypeError(f"kv_specs needs a {kind.__name__}, not {value!r}")
    fmt = QUANT_POLICIES[str(config.quant_policy)]
    who = f"policy {policy.name!r}"
    storage = asked(f"{who}: storage()", lambda: policy.storage(fmt))
    if isinstance(storage, str):
        raise PlanError(
            f"quant_policy {config.quant_policy!r} cannot be planned by {policy.name!r}: {storage}", format=fmt
        )
    if not isinstance(storage, KvStorage):
        raise PluginError(f"{who}: storage() returned {shown(storage)}; expected KvStorage or the reason why not")
    if config.latent_dim is not None:
        return _latent_specs(config, geometry, storage, fmt)
    head_dim = config.head_dim or 0
    v_head_dim = head_dim if config.v_head_dim is None else config.v_head_dim
    if fmt == "turbo":
        _check_turbo(head_dim, v_head_dim)
    order = asked(f"{who}: kv_order()", lambda: policy.kv_order(fmt))
    if not isinstance(order, tuple) or sorted(map(str, order)) != ["head", "other", "token"]:
        raise PluginError(f"{who}: kv_order() returned {shown(order)}; expected token, head and other once each")
    shard = head_shard(config.num_kv_heads, config.tp_size, config.tp_rank)
    axes = {"token": geometry.page_size, "head": shard.count}
    specs = [
        _spec(config, name, order, axes, _packed(dim, pack, name), storage.dtype, shard, form)
        for name, dim, pack, form in (
            ("k_cache", head_dim, storage.k_pack, "turbo_k" if fmt == "turbo" else fmt),
            ("v_cache", v_head_dim, storage.v_pack, "turbo_v" if fmt == "turbo" else fmt),
        )
    ]
    for name, aux in (("quant_0", storage.k_aux), ("quant_1", storage.v_aux)):
        if aux:
            specs.append(_spec(config, name, order, axes, aux, None, shard, f"{fmt}_scales"))
    return tuple(specs)


def _latent_specs(
    config: KvCacheConfig, geometry: BlockCacheGeometry, storage: KvStorage, fmt: str
) -> tuple[CacheTensorSpec, ...]:
    latent = config.latent_dim or 0
    width = latent + config.rope_dim
    if fmt == "fp8_ds_mla":
        if latent % _DS_MLA_TILE:
            raise PlanError(f"fp8_ds_mla keeps a scale for {_DS_MLA_TILE} elements; latent_dim {latent} is no multiple")
        width = latent + latent // _DS_MLA_TILE * 4 + config.rope_dim * 2  # fp8 latent, fp32 scales, 16-bit rope
    order = ("token", "head", "other")  # a latent has one head, so no device reorders it
    axes = {"token": geometry.page_size, "head": 1}
    return (
        _spec(config, "k_cache", order, axes, width, storage.dtype, REPLICATED, fmt),
        _spec(config, "v_cache", order, axes, 0, storage.dtype, REPLICATED, fmt),
    )


def _spec(
    config: KvCacheConfig,
    name: str,
    order: tuple[str, ...],
    axes: Mapping[str, int],
    width: int,
    dtype: str | None,
    shard: HeadShard,
    fmt: str,
) -> CacheTensorSpec:
    extent = {**axes, "other": width}
    return CacheTensorSpec(
        name=name,
        shape=tuple(extent[axis] for axis in order),
        dtype=dtype or config.dtype,
        axes=order,
        shard=shard,
        format=fmt,
        row_ids=tuple(config.layers) if not isinstance(config.layers, int) else (),
    )


def _packed(dim: int, pack: int, name: str) -> int:
    if dim % pack:
        raise PlanError(
            f"{name}: head size {dim} is no multiple of {pack}, the elements that one stored byte holds", head_dim=dim
        )
    return dim // pack


def _check_turbo(*dims: int) -> None:
    for dim in dims:
        if dim < 1 or dim & (dim - 1):
            raise PlanError(f"turbo_quant rotates by a Hadamard matrix; head size {dim} must be a power of two")


def _check_rank(tp_rank: int, tp_size: int) -> int:
    rank = whole(tp_rank, "tp_rank")
    if not 0 <= rank < tp_size:
        raise PlanError(f"tp_rank is {rank}; expected 0 to {tp_size - 1}", tp_rank=rank)
    return rank


def _layer_count(layers: int) -> int:
    """A count of layers, small enough to list them: a mistyped one would fill the memory."""
    count = positive(layers, "layers")
    if count > MOST_LAYERS:
        raise PlanError(f"layers is {count}; expected at most {MOST_LAYERS}", layers=count)
    return count


def _policy_name(policy: str | int) -> str:
    if isinstance(policy, bool):
        raise TypeError(f"quant_policy must be a name or a number, not {policy!r}")
    name = _CODES.get(policy, str(policy)) if isinstance(policy, int) else policy
    if not isinstance(name, str):
        raise TypeError(f"quant_policy must be a name or a number, not {policy!r}")
    if name not in QUANT_POLICIES:
        raise PlanError(
            f"quant_policy {policy!r} is unknown; expected one of {', '.join(QUANT_POLICIES)} or one of "
            f"{', '.join(map(str, _CODES))}",
            quant_policy=policy,
        )
    return "fp8" if name == "fp8_e4m3" else name
