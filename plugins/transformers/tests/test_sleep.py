"""A running model sleeps and goes on: every logit equals the plain cache's."""

from __future__ import annotations

import pytest
from twins import twins

from cachecore import EngineStateError


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3", "qwen3_next", "lfm2"])
def test_a_model_goes_on_after_a_sleep(make_pool, name):
    # full, sliding, latent, linear attention and convolution layers
    pool = make_pool(name, num_sequences=4)
    both = twins(name, pool)
    both.steps(3)

    for _ in range(2):
        pool.engine.sleep()
        pool.engine.wake()
        both.steps(3)


def test_a_sleeping_model_says_so(make_pool):
    pool = make_pool("llama", num_sequences=4)
    both = twins("llama", pool)
    pool.engine.sleep()

    with pytest.raises(EngineStateError, match=r"asleep; call wake\(\)"):
        both.steps(1)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "mamba"])
def test_states_that_were_out_as_copies_go_back_to_where_the_memory_is_now(make_pool, name):
    pool = make_pool(name, num_sequences=8)
    both = twins(name, pool)
    both.steps(2)
    both.select([1, 0, 1])  # slots that do not follow one another, so that layers get copies
    both.steps(2)

    pool.engine.sleep()
    pool.engine.wake()

    both.steps(3)
