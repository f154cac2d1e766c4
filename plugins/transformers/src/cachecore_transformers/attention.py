"""The attention ``"cachecore"`` of transformers' interface: steps of one token read the cache's own blocks.

Prefill, and whatever the backend's kernel cannot do, is computed on gathered keys and values as transformers'
``sdpa`` does, or with attention sinks and soft-capped scores as its ``eager`` does.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from cachecore import PlanError
from cachecore_transformers.handed import ATTENTION, PagedStep, handed_with

__all__ = ["register_attention"]

_UNUSUAL = (
    ("s_aux", "attention sinks"),
    ("softcap", "soft-capped scores"),
    ("position_bias", "a bias on positions"),
)
_SELECTIONS = ("indices", "block_indices", "sinks")
"""What sparse attention hands over under any name but ``eager`` and ``sdpa``."""


def register_attention() -> None:
    """Make ``model.set_attn_implementation("cachecore")`` known to transformers; twice is once."""
    AttentionInterface.register(ATTENTION, attention_forward)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As transformers calls it: ``(sequences, heads, tokens, dim)`` in, ``(sequences, tokens, heads, dim)`` out."""
    _check_selection(module, kwargs)
    handed = handed_with(key, value)
    if handed is not None:
        reader, step = handed.reader, handed.step
        reader.config = getattr(module, "config", None)
        reader.asks = reason = _asked(dropout, kwargs)
        if step is not None:
            reason = reason or _misfit(query, attention_mask, step)
            reader.attended(reason)
            if reason is None:
                scale = query.shape[-1] ** -0.5 if scaling is None else scaling
                return step.attend(query, attention_mask, scale), None
            key, value = step.gather()
    softcap, s_aux = kwargs.get("softcap"), kwargs.get("s_aux")
    if softcap is not None or s_aux is not None:
        return _scored(module, query, key, value, attention_mask, dropout, scaling, softcap=softcap, s_aux=s_aux)
    result: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return result


def _check_selection(module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    """Raise :class:`~cachecore.PlanError` when attention itself is to select tokens, which neither way here does."""
    for name in _SELECTIONS:
        if kwargs.get(name) is not None:
            layer = getattr(module, "layer_idx", None)
            raise PlanError(
                f"{type(module).__name__} (layer {layer}) leaves it to attention to select tokens by {name}, which "
                f"{ATTENTION!r} does not; call model.set_attn_implementation('sdpa'), with which the model masks them",
                layer=layer,
            )


def _asked(dropout: float, kwargs: dict[str, Any]) -> str | None:
    """What the model asks for and the kernel does not compute."""
    for name, meaning in _UNUSUAL:
        if kwargs.get(name) is not None:
            return f"the model asks for {meaning}, which the kernel does not compute"
    return f"the model asks for a dropout of {dropout}; call model.eval()" if dropout else None


def _misfit(query: torch.Tensor, mask: torch.Tensor | None, step: PagedStep) -> str | None:
    """Why this call's operands are none for the kernel."""
    if query.dtype != step.rows[0].dtype:
        return f"the query is in {query.dtype} and the cache in {step.rows[0].dtype}"
    if mask is None:
        return None
    expected = (1, 1, step.step.span.stop - step.step.span.visible)
    if mask.dtype == torch.bool and mask.shape[1:] == expected and mask.shape[0] in (1, query.shape[0]):
        return None
    return f"the mask is {tuple(mask.shape)} of {mask.dtype}; the kernel takes bool, (sequences, *{expected})"


def _scored(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    *,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention step by step, with capped scores, or with sinks that take weight and give nothing."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    score = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        score = torch.tanh(score / softcap) * softcap
    if mask is None and query.shape[2] > 1:
        ones = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device)
        mask = ones.tril(score.shape[-1] - score.shape[-2])
    if mask is not None:
        lowest = torch.finfo(score.dtype).min
        score = score.masked_fill(~mask, lowest) if mask.dtype == torch.bool else score + mask
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(len(score), -1, score.shape[2], 1)
        score = torch.cat([score, sinks.to(score.dtype)], dim=-1)
    weight = score.softmax(-1, dtype=torch.float32).to(query.dtype)[..., : key.shape[2]]
    weight = torch.nn.functional.dropout(weight, p=dropout, training=module.training)
    return (weight @ value).transpose(1, 2).contiguous(), weight
