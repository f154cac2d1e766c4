"""Facts about the vendors and their chips, as data. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "ASCEND",
    "ASCEND_310P",
    "ASCEND_910",
    "CAMB",
    "MACA",
    "SOC_VARIABLE",
    "VENDORS",
    "SocFamily",
    "Vendor",
    "family_of",
    "planned_soc",
]

SOC_VARIABLE = "CACHECORE_ASCEND_SOC"
"""Names the chip family to plan for where the device is not: ``910`` (the default) or ``310P``."""


@dataclass(frozen=True, slots=True)
class SocFamily:
    """One family of Ascend chips: its versions as torch_npu numbers them, and the pages its kernels take.

    ``not_addressable`` is the reason why the bytes of a block mean nothing elsewhere, if they do not;
    ``no_engine`` why this release plans and sizes for the chip, but opens no engine on it. ``token_multiple``
    is what the elements of a token's K or V, all heads together, are stored in multiples of.
    """

    name: str
    versions: tuple[range, ...]
    page_multiple: int
    largest_page: int
    largest_page_elements: int | None = None
    takes_latent: bool = True
    token_multiple: int = 1
    not_addressable: str | None = None
    no_engine: str | None = None


ASCEND_910 = SocFamily(
    "910",
    # 220-225 are the A2 (910B), 250-255 the A3 (910C). Source: dlinfer vendor/ascend/utils.py; SocVersion of torch_npu.
    versions=(range(100, 105), range(220, 226), range(250, 256)),
    # Source: CANN's PagedAttention, block_size <= 128, 128 advised; its cube unit works on 16 rows.
    page_multiple=16,
    largest_page=128,
)
ASCEND_310P = SocFamily(
    "310P",
    versions=(range(200, 206),),
    # Source: vllm-ascend _310p/attention: pages of 128 or 64 tokens, at most 128 * 128 elements a head; no MLA.
    page_multiple=64,
    largest_page=128,
    largest_page_elements=128 * 128,
    takes_latent=False,
    token_multiple=16,  # the same folder: (heads * dim // 16, tokens, 16)
    not_addressable=(
        "kernels of Ascend 310P keep K and V in the NZ format (FRACTAL_NZ), whose bytes mean nothing elsewhere; "
        "what this plugin does there was never run"
    ),
    no_engine=(
        "kernels of Ascend 310P take K and V in the NZ format (acl_format=29), "
        "as pages of (heads * dim / 16, tokens, 16), "
        "which no order of a page's axes is, in memory of torch_npu.empty_with_format; "
        "this release plans and sizes for the chip, but opens no engine on it"
    ),
)
FAMILIES = {family.name: family for family in (ASCEND_910, ASCEND_310P)}


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor: its backend's name, its torch device type and library, and what its kernels want.

    ``index_dtype`` is that of block tables and slots. ``page_sizes`` are the only ones taken, if given.
    ``batch_copy`` is the ladder that swaps climb down; at its end stands a loop.
    """

    name: str
    title: str
    device_type: str
    library: str | None
    index_dtype: str
    kv_order: tuple[str, ...] = ("token", "head", "other")
    page_sizes: tuple[int, ...] = ()
    takes_int8: bool = False
    batch_copy: tuple[str, ...] = ()


ASCEND = Vendor(
    "ascend",
    "Ascend",
    "npu",
    "torch_npu",
    index_dtype="int32",  # Source: lmdeploy backends/dlinfer/ascend/op_backend.py
    takes_int8=True,  # Source: dlinfer docs/quant/ascend_kv_quant.md, static scales
    batch_copy=("address-table", "foreach"),
)
CAMB = Vendor(
    "camb",
    "Cambricon",
    "mlu",
    "torch_mlu",
    index_dtype="int32",  # Source: lmdeploy backends/dlinfer/camb/op_backend.py
    kv_order=("head", "token", "other"),  # the same file: (kv_heads, block, head_dim)
    page_sizes=(16,),  # Source: README of dlinfer
)
MACA = Vendor(
    "maca",
    "MetaX",
    "cuda",  # MetaX ships a torch whose device type is cuda
    None,
    index_dtype="int64",  # Source: lmdeploy backends/dlinfer/maca/op_backend.py
)
VENDORS = {vendor.name: vendor for vendor in (ASCEND, CAMB, MACA)}


def planned_soc(environ: Mapping[str, str] | None = None) -> SocFamily | str:
    """The family that plans are made for, or what is wrong with its name."""
    name = (os.environ if environ is None else environ).get(SOC_VARIABLE) or ASCEND_910.name
    return FAMILIES.get(name) or f"{SOC_VARIABLE} is {name!r}; expected {' or '.join(FAMILIES)}"


def family_of(version: int) -> SocFamily | None:
    """The family of a chip by its number in torch_npu; None for one that nobody has looked at."""
    for family in FAMILIES.values():
        if any(version in versions for versions in family.versions):
            return family
    return None
