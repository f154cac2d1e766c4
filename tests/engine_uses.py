"""Everything that an engine over K/V is asked for, none of which works without its memory."""

from __future__ import annotations

EVERY_USE = {
    "row": lambda engine: engine.block_caches.row("k_cache", 0),
    "layer": lambda engine: engine.block_caches.layer("k_cache", 0),
    "name": lambda engine: engine.block_caches["k_cache"],
    "layer_caches": lambda engine: engine.layer_caches,
    "copy": lambda engine: engine.copy_blocks([(0, 1)]),
    "empty copy": lambda engine: engine.copy_blocks([]),
    "copy on device": lambda engine: engine.copy_blocks_on_device(None),
    "swap out": lambda engine: engine.swap_out([(0, 0)]),
    "swap in": lambda engine: engine.swap_in([(0, 0)]),
    "zero": lambda engine: engine.zero_blocks([0]),
    "in flight": lambda engine: engine.host_blocks_in_flight(),
    "stats": lambda engine: engine.stats(),
    "allocation": lambda engine: engine.allocation(),
    "states": lambda engine: engine.states,
    "group": lambda engine: engine.group(),
}
