"""Compiles every kernel for one architecture without a GPU, and prints what its PTX holds, as JSON.

Run in a process of its own: where the interpreter is on, kernels cannot be compiled.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from cachecore_cuda_triton import kernels, kernels_attention
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

WIDTHS = (16, 21)
ATTENTION = {
    "GROUP": 4,
    "GROUP_PAD": 16,
    "KEY_DIM": 128,
    "KEY_PAD": 128,
    "VALUE_DIM": 128,
    "VALUE_PAD": 128,
    "BLOCK_SIZE": 64,
    "PAGE_SIZE": 16,
    "TILE": 64,
    "HAS_STARTS": True,
    "HAS_MASK": True,
    "HEADS": 8,
    "HEADS_PAD": 8,
    "SPLIT": True,
    "SPLITS_PAD": 16,
    "PRECISION": "tf32",
    "INTERPRETED": False,
}
POINTERS = {
    **dict.fromkeys(("table", "src_ids", "dst_ids", "ids", "tables", "starts", "stops"), "*i64"),
    **dict.fromkeys(("query", "new_keys", "new_values", "keys", "values", "out"), "*bf16"),
    **dict.fromkeys(("partial", "partial_lse"), "*fp32"),
    "masks": "*u8",
    "scale_log2": "fp32",
    "total": "i64",
}
UNALIGNED = ("src_ids", "dst_ids", "ids", "tables", "starts", "stops", "masks", "stride_table", "stride_mask")


def compiled(kernel: Any, constants: dict[str, Any], capability: int, **pointers: str) -> dict[str, Any]:
    """Compile as the launchers do: pointers and strides are multiples of 16."""
    known = {**POINTERS, **pointers}
    names = kernel.arg_names
    constexprs = {name: constants[name] for name in names if name in constants}
    signature = {name: "constexpr" if name in constexprs else known.get(name, "i32") for name in names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in UNALIGNED and (signature[name][0] == "*" or name.startswith("stride"))
    }
    source = ASTSource(kernel, signature, constexprs, attributes)
    made = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    ptx = made.asm["ptx"]
    return {
        "target": re.search(r"\.target (\w+)", ptx)[1],  # type: ignore[index]  # every PTX names its target
        "accesses": sorted(set(re.findall(r"(?:ld|st)\.global\S*|cp\.async\.\S+global", ptx))),
        "shared_nbytes": made.metadata.shared,
    }


def main(capability: int) -> None:
    """Every kernel."""
    found = {}
    for widths in WIDTHS:
        for name, tiles_first in (
            ("copy_tiles", False),
            ("copy_tiles", True),
            ("copy_few", None),
            ("zero_tiles", None),
        ):
            constants = {"WIDTHS": widths, "TILE": kernels.TILE_NBYTES, "TILES_FIRST": tiles_first}
            found[f"{name} {widths}" + " tiles first" * bool(tiles_first)] = compiled(
                getattr(kernels, name), constants, capability
            )
    found["occupy"] = compiled(kernels.occupy, {"THREADS": kernels.OCCUPY_THREADS}, capability, out="*i64")
    for name in ("attend", "combine", "store"):
        found[name] = compiled(getattr(kernels_attention, name), ATTENTION, capability)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
