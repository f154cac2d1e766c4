"""A layer hands attention the same tensors as transformers' own: values, shapes and strides."""

from __future__ import annotations

import pytest
import torch
from cachecore_transformers import CachecoreCache
from transformers import DynamicCache
from twins import DEVICE, tiny_config


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_what_update_returns(name, make_pool):
    pool = make_pool(name, num_sequences=2)
    blocks, plain = CachecoreCache(pool), DynamicCache(config=tiny_config(name))

    for tokens in (1, 9, 5, 1, 1, 7):
        for layer in pool.layers:
            keys = torch.randn(2, tokens, layer.shape.num_heads, layer.shape.k_dim, device=DEVICE).transpose(1, 2)
            values = torch.randn(2, layer.shape.num_heads, tokens, layer.shape.v_dim, device=DEVICE)
            sizes = blocks.get_mask_sizes(tokens, layer.layer), plain.get_mask_sizes(tokens, layer.layer)
            got = blocks.update(keys, values, layer.layer)
            expected = plain.update(keys, values, layer.layer)

            assert sizes[0] == sizes[1]
            for one, two in zip(got, expected, strict=True):
                assert torch.equal(one, two)
                assert one.stride() == two.stride()
            assert blocks.get_seq_length(layer.layer) == plain.get_seq_length(layer.layer)
        assert blocks.get_max_length() == plain.get_max_length()
