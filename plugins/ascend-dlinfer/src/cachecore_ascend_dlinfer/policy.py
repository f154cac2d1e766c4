"""Layouts, axis orders, storage and page rules of the vendors. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import (
    BlockCacheGeometry,
    CacheLayout,
    CacheTensorSpec,
    KvStorage,
    LayoutHints,
    LayoutPolicy,
    PlanError,
)
from cachecore.layout_kinds import block_major_layout, contiguous_layout, contiguous_state_layout
from cachecore_ascend_dlinfer.vendors import ASCEND, ASCEND_910, SocFamily, Vendor

__all__ = ["DlinferPolicy"]

_FP8 = "8-bit floats in a K/V cache are known to work on CUDA only (lmdeploy refuses them elsewhere); use int8 or none"


class DlinferPolicy(LayoutPolicy):
    """Everything contiguous: one dense pool a tensor, blocks and states, K and V apart.

    Vendor kernels refuse tensors with gaps, or write to a copy of them that nobody reads: on a packed K
    view ``torch.flatten`` returns a copy, and a scatter into it reaches nothing.
    """

    version = "1"

    def __init__(self, vendor: Vendor = ASCEND, soc: SocFamily | None = None) -> None:
        self.vendor = vendor
        self.soc = (soc or ASCEND_910) if vendor is ASCEND else None
        self.name = f"dlinfer-{vendor.name}"
        if self.soc is not None and self.soc is not ASCEND_910:
            self.name += f"-{self.soc.name.lower()}"

    def select_block_layout(
        self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        """``[rows, pages, *shape]`` dense, a pool a spec; one run a block cannot be had, as kernels want this."""
        return contiguous_layout(specs, base_alignment=hints.base_alignment)

    def select_state_layout(self, specs: Sequence[CacheTensorSpec], hints: LayoutHints) -> CacheLayout:
        """``[rows, slots, *shape]`` dense, a pool a state: each layer's slots are one tensor."""
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)

    def select_host_layout(
        self,
        specs: Sequence[CacheTensorSpec],
        geometry: BlockCacheGeometry,
        device_layout: CacheLayout,
        hints: LayoutHints,
    ) -> CacheLayout:
        """A mirror of the device, so that neighbouring blocks move as one run; block-major when asked for.

        No kernel gathers here: a swap is memory copies, as many for either layout, fewer for the mirror.
        """
        if hints.one_run_per_block:
            return block_major_layout(
                specs, geometry.pages_per_block, like=device_layout, base_alignment=hints.base_alignment
            )
        return contiguous_layout(specs, base_alignment=hints.base_alignment)

    def select_state_host_layout(
        self, specs: Sequence[CacheTensorSpec], device_layout: CacheLayout, hints: LayoutHints
    ) -> CacheLayout:
        """A mirror of the device; block-major when asked for."""
        if hints.one_run_per_block:
            return block_major_layout(specs, 1, like=device_layout, base_alignment=hints.base_alignment)
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)

    def kv_order(self, format: str) -> tuple[str, ...]:
        """Heads first on Cambricon, tokens first elsewhere."""
        return self.vendor.kv_order

    def storage(self, format: str) -> KvStorage | str:
        """The model's own dtype, or int8 with scales that are the layer's parameters; nothing else."""
        if format == "plain":
            return KvStorage()
        if format == "int8_asym":
            if self.vendor.takes_int8:
                return KvStorage("int8")  # static scales and offsets a layer: none in the cache
            return f"dlinfer quantises K and V on Ascend only, not on {self.vendor.title}; use none"
        if format.startswith("fp8"):
            return _FP8
        return f"no kernel of dlinfer for {self.vendor.title} reads K/V format {format!r}; use none"

    def check_geometry(self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry) -> None:
        """Refuse pages that the paged kernels of the vendor cannot take; caches that are no K/V have no rule."""
        for spec in specs:
            if set(spec.axes) == {"token", "head", "other"} and 0 not in spec.shape:
                extent = dict(zip(spec.axes, spec.shape, strict=True))
                reason = self._refusal(geometry.page_size, extent["head"], extent["other"])
                if reason is not None:
                    raise PlanError(
                        f"cache {spec.name!r} with kernel_block_size {geometry.page_size}: {reason}",
                        cache=spec.name,
                        kernel_block_size=geometry.page_size,
                    )

    def _refusal(self, page: int, heads: int, width: int) -> str | None:
        vendor, soc = self.vendor, self.soc
        if vendor.page_sizes and page not in vendor.page_sizes:
            return f"{vendor.title} takes pages of {' or '.join(map(str, vendor.page_sizes))} tokens"
        if soc is None:
            return None
        if page % soc.page_multiple or page > soc.largest_page:
            return f"Ascend {soc.name} takes pages of a multiple of {soc.page_multiple} up to {soc.largest_page} tokens"
        if heads == 1 and width > _WIDEST_HEAD and not soc.takes_latent:
            return f"Ascend {soc.name} has no kernel for a latent of {width} elements (MLA)"
        if heads * width % soc.token_multiple:
            return (
                f"Ascend {soc.name} stores the {heads * width} elements of a token in multiples of {soc.token_multiple}"
            )
        if width >= _WIDE and page > _WIDE_PAGE:
            return f"a head of {width} elements takes pages of at most {_WIDE_PAGE} tokens"
        if soc.largest_page_elements is not None and page * width > soc.largest_page_elements:
            return f"Ascend {soc.name} takes at most {soc.largest_page_elements} elements of a head in a page"
        return None


_WIDEST_HEAD = 256
"""A wider single head is a latent."""

_WIDE, _WIDE_PAGE = 512, 32
"""Source: lmdeploy engine/executor/base.py, _adjust_block_size()."""
