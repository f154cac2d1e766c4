"""What one token, one compressed entry and one sequence keep in a layer, read from configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachecore.errors import PlanError

__all__ = [
    "COMPRESSED_KINDS",
    "CONV_KINDS",
    "INDEXED_KINDS",
    "EntryShape",
    "KvShape",
    "StateShape",
    "entry_shapes",
    "kv_shape",
    "shares_kv",
    "state_name",
    "state_shapes",
]

CONV_KINDS = ("linear_attention", "conv", "hybrid", "hybrid_sliding")
"""Layer kinds, as transformers names them, with convolution states and perhaps recurrent ones."""
INDEXED_KINDS = ("indexed_attention", "minimax_m3_sparse")
"""Layer kinds that keep indexer keys beside the keys and values of every token."""
COMPRESSED_KINDS = ("compressed_sparse_attention", "heavily_compressed_attention")
"""Layer kinds of DeepSeek-V4 that keep a window and compressed entries of everything before."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values of one token in one layer: ``(num_heads, k_dim)`` and ``(num_heads, v_dim)``.

    ``latent`` marks one row for both: an MLA cache, one head whose key is the latent and whose value is
    the rotary part; or, with a ``v_dim`` of 0, one head whose key is the value too.
    """

    num_heads: int
    k_dim: int
    v_dim: int
    latent: bool = False


@dataclass(frozen=True, slots=True)
class EntryShape:
    """Vectors of ``width`` that a layer keeps beside its keys and values, one every ``rate`` tokens.

    ``dense`` asks for a row without gaps, as indexer kernels want it.
    """

    name: str
    width: int
    group: str = "full"
    rate: int = 1
    dense: bool = False


@dataclass(frozen=True, slots=True)
class StateShape:
    """One state of one sequence in one layer. Without ``dtype`` it is the model's."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None


def state_name(kind: str, index: int) -> str:
    """The name of the ``index``-th ``conv`` or ``recurrent`` state of a layer."""
    return f"{kind}_state_{index}" if index else f"{kind}_state"


def shares_kv(config: Any) -> bool:
    """Whether keys and values are one tensor, as in DeepSeek-V4."""
    return getattr(config, "model_type", None) == "deepseek_v4"


def kv_shape(config: Any, layer: int) -> KvShape:
    """Keys and values of one token in ``layer``, by the configuration of that layer."""
    latent = getattr(config, "kv_lora_rank", None)
    if latent is not None:
        return KvShape(1, latent, config.qk_rope_head_dim, latent=True)
    try:
        if shares_kv(config):
            return KvShape(1, config.head_dim, 0, latent=True)
        num_heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    except AttributeError as error:
        raise PlanError(
            f"layer {layer}: {type(config).__name__} does not say how many heads of which size it caches "
            f"({error}); pass kv_shapes=measure_kv_shapes(model)",
            layer=layer,
        ) from error
    return KvShape(kv_heads, head_dim, head_dim)


def entry_shapes(config: Any, kind: str, layer: int) -> tuple[EntryShape, ...]:
    """What a layer of ``kind`` keeps beside keys and values, in blocks."""
    if kind in INDEXED_KINDS:
        kinds = getattr(config, "indexer_types", None)
        if kinds and kinds[layer] == "shared":  # uses the selection of an earlier layer
            return ()
        return (EntryShape("index_k_cache", config.index_head_dim, dense=True),)
    if kind not in COMPRESSED_KINDS:
        return ()
    rate = config.compress_rates[kind]
    group = f"compressed_{rate}"
    entries = [EntryShape("compressor_cache", config.head_dim, group, rate)]
    if kind == "compressed_sparse_attention":
        entries.append(EntryShape("indexer_cache", config.index_head_dim, group, rate))
    return tuple(entries)


def state_shapes(config: Any, kind: str, layer: int) -> tuple[StateShape, ...]:
    """The states of a layer of ``kind``; none for attention alone."""
    if kind in COMPRESSED_KINDS:
        return _compressor_states(config, kind)
    if kind not in CONV_KINDS:
        return ()
    known = _FAMILIES.get(config.model_type)
    if known is None or getattr(config, "number_of_conv_states", 1) != 1:
        raise PlanError(
            f"layer {layer}: how large the states of a {kind!r} layer of {type(config).__name__} are is not known; "
            "pass state_shapes=measure_state_shapes(model)",
            layer=layer,
            kind=kind,
        )
    return known(config)


def _compressor_states(config: Any, kind: str) -> tuple[StateShape, ...]:
    """Tokens that do not fill an entry yet, and the last full ones where neighbouring entries overlap."""
    rate = config.compress_rates[kind]
    if kind == "heavily_compressed_attention":
        buffer = (rate, config.head_dim)
        return StateShape("compressor_buffer_kv", buffer), StateShape("compressor_buffer_gate", buffer)
    shapes = []
    for name, dim in (("compressor", config.head_dim), ("indexer", config.index_head_dim)):
        for what in ("kv", "gate"):
            shapes.append(StateShape(f"{name}_buffer_{what}", (rate, 2 * dim)))
            shapes.append(StateShape(f"{name}_overlap_{what}", (rate, dim)))
    return tuple(shapes)


def _states(channels: int, kernel: int, recurrent: tuple[int, ...]) -> tuple[StateShape, ...]:
    """Recurrent states are float32 in transformers, whatever the model computes in."""
    return StateShape("conv_state", (channels, kernel)), StateShape("recurrent_state", recurrent, "float32")


def _delta_net(config: Any) -> tuple[StateShape, ...]:
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    recurrent = (config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim)
    return _states(2 * keys + values, config.linear_conv_kernel_dim, recurrent)


def _mamba(config: Any) -> tuple[StateShape, ...]:
    return _states(config.intermediate_size, config.conv_kernel, (config.intermediate_size, config.state_size))


def _jamba(config: Any) -> tuple[StateShape, ...]:
    channels = config.mamba_expand * config.hidden_size
    return _states(channels, config.mamba_d_conv, (channels, config.mamba_d_state))


def _heads(num_heads: str, dim: str, groups: str, state: str, kernel: str) -> Callable[[Any], tuple[StateShape, ...]]:
    """Mamba2 under the names that one configuration gives its numbers."""

    def shapes(config: Any) -> tuple[StateShape, ...]:
        recurrent = (getattr(config, num_heads), getattr(config, dim), getattr(config, state))
        channels = recurrent[0] * recurrent[1] + 2 * getattr(config, groups) * recurrent[2]
        return _states(channels, getattr(config, kernel), recurrent)

    return shapes


def _short_conv(config: Any) -> tuple[StateShape, ...]:
    return (StateShape("conv_state", (config.hidden_size, config.conv_L_cache)),)


_MAMBA2 = _heads("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_FAMILIES: dict[str, Callable[[Any], tuple[StateShape, ...]]] = {
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "jamba": _jamba,
    "mamba2": _heads("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
    "nemotron_h": _heads("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    "zamba2": _heads("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv"),
    "falcon_h1": _MAMBA2,
    "bamba": _MAMBA2,
    "granitemoehybrid": _MAMBA2,
    "lfm2": _short_conv,
    "lfm2_moe": _short_conv,
}
