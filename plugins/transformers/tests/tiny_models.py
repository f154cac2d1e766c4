"""Configurations of tiny random models: every layer kind that transformers caches."""

from __future__ import annotations

from typing import Any

WINDOW = 12
_SHARED = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
}
_TYPES = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": _TYPES * 2}),
    "gpt_oss": (
        "GptOssConfig",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    "deepseek_v3": ("DeepseekV3Config", _MLA),
    "llama4": (
        "Llama4TextConfig",
        {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": WINDOW},
    ),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "num_hidden_layers": 6,
            "layer_types": _TYPES * 3,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 128,
            "hidden_size_per_layer_input": 8,
        },
    ),
}
MODELS = tuple(CONFIGS)
"""Dense models: keys and values alone."""

_DELTA_NET = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_INDEXED = {
    **_MLA,
    "num_hidden_layers": 3,
    "index_topk": 8,
    "index_head_dim": 16,
    "index_n_heads": 2,
}
_MAMBA = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0, "state_size": 8}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3NextConfig",
        {**_DELTA_NET, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", _DELTA_NET),
    "jamba": (
        "JambaConfig",
        {
            "use_mamba_kernels": False,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **_EXPERTS,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
            "head_dim": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 8,
            "n_routed_experts": 4,
            "moe_shared_expert_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "chunk_size": 16,
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        {
            "num_hidden_layers": 2,
            "head_dim": 8,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 16,
        },
    ),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 16}),
    "mamba": ("MambaConfig", _MAMBA),
    "mamba2": ("Mamba2Config", {**_MAMBA, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    "zamba2": (
        "Zamba2Config",
        {
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "num_mem_blocks": 1,
        },
    ),
    "zaya": (  # hybrids whose convolutions see only what the kernel needs
        "ZayaConfig",
        {
            "layer_types": ["hybrid", "hybrid_sliding"] * 2,
            "sliding_window": WINDOW,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "router_hidden_size": 16,
        },
    ),
    "inkling": (  # four convolutions a layer
        "InklingTextConfig",
        {
            **_EXPERTS,
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "sliding_window": WINDOW,
            "head_dim": 16,
            "swa_head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "n_routed_experts": 4,
        },
    ),
    "deepseek_v4": (
        "DeepseekV4Config",
        {
            **_EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": [
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                "sliding_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
            "num_key_value_heads": 1,
            "head_dim": 16,
            "q_lora_rank": 16,
            "o_lora_rank": 16,
            "o_groups": 2,
            "sliding_window": WINDOW,
            "index_topk": 4,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "n_routed_experts": 4,
            "num_hash_layers": 0,
        },
    ),
}
_INDEXERS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v32": ("DeepseekV32Config", _INDEXED),
    "minimax_m3": (
        "MiniMaxM3VLTextConfig",
        {
            "head_dim": 16,
            "rotary_dim": 8,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "dense_intermediate_size": 32,
            "shared_intermediate_size": 16,
        },
    ),
    "glm_moe_dsa": ("GlmMoeDsaConfig", {**_INDEXED, "indexer_types": ["full", "shared", "full"]}),
}
STATE_MODELS = tuple(_STATES)
"""Models with states in slots."""
INDEXED_MODELS = tuple(_INDEXERS)
"""Models with indexer keys beside keys and values."""
CONFIGS.update(_STATES | _INDEXERS)
MEASURED_MODELS = ("zaya", "inkling")
"""Models with states (and, in Inkling, keys) whose shapes have to be measured."""
CACHE_PARAMS = ("mamba", "mamba2")
"""Models without attention, which take their cache as ``cache_params``."""
SHARED = _SHARED
