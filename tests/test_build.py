from __future__ import annotations

import subprocess
import sys

import pytest
from announcing import MINE, Announcing, backend, block_copy, registry_of
from samples import POLICY, Operator, kv_plan, plan_set, request

import cachecore
from cachecore import (
    BlockCacheBinding,
    BlockCacheGeometry,
    ByteBackend,
    GroupSpec,
    KvCacheConfig,
    LayoutError,
    LayoutHints,
    NoBackendError,
    PlanError,
    PluginError,
    PluginRegistry,
    StandardLayoutPolicy,
    StateCacheRequest,
    build_block_cache_plan,
    default_registry,
    open_engine,
)
from cachecore.layout_kinds import packed_layout

KV = KvCacheConfig(layers=2, dtype="float16", num_kv_heads=2, head_dim=8)
GEOMETRY = BlockCacheGeometry(4)


def build(modules=(), **more):
    return build_block_cache_plan(modules, **{"geometry": GEOMETRY, "device": "null", "policy": POLICY, **more})


def test_standard_kv_comes_first_in_its_group():
    plans = build([Operator(request())], kv=KV)

    assert [spec.name for spec in plans.only().specs] == ["k_cache", "v_cache", "index"]


def test_every_config_operator_and_state_reaches_its_group():
    sliding = KvCacheConfig(layers=[2, 3], dtype="float16", num_kv_heads=2, head_dim=8, group="sliding")
    state = StateCacheRequest(name="ssm", shape=(4,), dtype="float32")

    plans = build([Operator(request(group="index"))], kv=[KV, sliding], states=[state])

    assert {plan.name: [spec.name for spec in plan.specs] for plan in plans} == {
        "full": ["k_cache", "v_cache"],
        "sliding": ["k_cache", "v_cache"],
        "index": ["index"],
        "state": ["ssm"],
    }


def test_a_declared_group_has_its_own_geometry_and_window():
    sliding = KvCacheConfig(layers=[2], dtype="float16", num_kv_heads=2, head_dim=8, group="sliding")

    plans = build(kv=[KV, sliding], groups=[GroupSpec("sliding", BlockCacheGeometry(16, 8), window=32)])

    assert (plans["full"].geometry, plans["full"].group.window) == (GEOMETRY, None)
    assert (plans["sliding"].geometry, plans["sliding"].group.window) == (BlockCacheGeometry(16, 8), 32)
    assert plans["sliding"].specs[0].shape == (8, 2, 8)


def test_operators_see_the_geometries():
    class Asking(Operator):
        def get_block_cache_requests(self, context):
            self.seen = {name: geometry.page_size for name, geometry in context.geometries.items()}
            return [request()]

    operator = Asking()
    build([operator], groups=[GroupSpec("full", BlockCacheGeometry(8))], kv=[])

    assert operator.seen == {"full": 8}


def test_operators_are_bound_once_the_plan_stands():
    operators = [Operator(request()), Operator(request())]

    build(operators)

    assert [operator.block_cache_bindings for operator in operators] == [
        (BlockCacheBinding("index", row),) for row in (0, 1)
    ]


class Misplacing(StandardLayoutPolicy):
    """Lays out the K/V of another model."""

    def select_block_layout(self, specs, geometry, hints):
        return packed_layout(specs[:1])


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"policy": Misplacing(), "kv": KV}, LayoutError),
        ({"kv": [KV, KV]}, PlanError),
        ({"groups": [GroupSpec("sliding", GEOMETRY)]}, PlanError),
        ({"device": "NULL"}, PlanError),
        ({"device": 3}, TypeError),
        ({"states": [request()]}, TypeError),
        ({"policy": None, "device": "npu", "registry": PluginRegistry(environ={})}, NoBackendError),
    ],
    ids=["layout", "layers twice", "unused group", "device", "device type", "state type", "no backend"],
)
def test_a_refused_plan_binds_nothing(more, error):
    operators = [Operator(request()), Operator(request())]

    with pytest.raises(error):
        build(operators, **more)

    assert [operator.block_cache_bindings for operator in operators] == [(), ()]


def test_an_operator_cannot_take_the_name_of_standard_kv():
    with pytest.raises(
        PlanError, match=r"cache 'k_cache' is both standard K/V, found by layer, and an operator's cache"
    ):
        build([Operator(request("k_cache"))], kv=KV)


def test_nothing_to_plan_is_refused():
    with pytest.raises(PlanError, match=r"nothing asks for a cache: no module has requests, and no kv= or states= was"):
        build([object()])


def test_a_declared_group_that_nobody_uses_is_refused():
    with pytest.raises(
        PlanError, match=r"group 'sliding' is declared, but no K/V config and no operator asks for a cache"
    ):
        build(kv=KV, groups=[GroupSpec("sliding", GEOMETRY)])


def test_a_group_is_declared_once():
    with pytest.raises(PlanError, match=r"group names \['full', 'full'\] repeat; each group is declared once"):
        build(kv=KV, groups=[GroupSpec("full", GEOMETRY), GroupSpec("full", BlockCacheGeometry(8))])


@pytest.mark.parametrize("kv", [3, {"layers": 2}, [KV, "kv"]])
def test_kv_of_a_wrong_type_is_a_type_error(kv):
    with pytest.raises(TypeError, match=r"kv must be a (KvCacheConfig|sequence)"):
        build(kv=kv)


def test_a_policy_of_a_wrong_type_is_a_type_error():
    with pytest.raises(TypeError, match=r"policy must be a LayoutPolicy, not <class"):
        build(kv=KV, policy=StandardLayoutPolicy)


def test_hints_reach_the_policy():
    plans = build(
        kv=KV, states=[StateCacheRequest(name="ssm", shape=(4,), dtype="float32")], hints=LayoutHints(True, 4096)
    )

    assert plans["full"].layout.kind == "page-major"
    assert {plan.layout.pools[0].base_alignment for plan in plans} == {4096}


def test_without_a_policy_the_best_claimant_plans_unprobed():
    class Camb(StandardLayoutPolicy):
        name = "camb"

    def unprobed(device):
        raise AssertionError("no device is touched")

    registry = registry_of(backend("camb", ("mlu",), load_policy=Camb, probe=unprobed))

    plans = build(kv=KV, policy=None, device="mlu:1", registry=registry)

    assert (plans.backend, plans.device, plans.only().policy) == ("camb", "mlu:1", "camb")


def test_planning_can_be_forced_to_a_backend():
    registry = registry_of(backend("fast", priority=90), backend("slow"))

    assert build(kv=KV, policy=None, registry=registry, backend="slow").backend == "slow"


def test_open_engine_opens_the_winner_with_every_copy():
    registry = registry_of(backend("fast", priority=90), environ={"CACHECORE_DISABLE_COPIES": "off"})
    registry.register(Announcing(copies=[block_copy("mine", 20), block_copy("off", 99)]), MINE)

    with open_engine(plan_set(kv_plan()), 4, host_counts=2, registry=registry) as engine:
        (group,) = engine.stats().groups

        assert str(engine.device) == "null"
        assert (group.num_blocks, group.num_host_blocks) == (4, 2)
        assert {copy.record for copy in group.copies} == {"mine"}


def test_open_engine_takes_another_device_than_planned_for():
    registry = registry_of(backend("any", ("*",)))

    assert str(open_engine(plan_set(kv_plan()), 1, device="mlu:1", registry=registry).device) == "mlu:1"


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_open_engine_can_be_forced(way):
    class Slow(ByteBackend):
        name = "slow"

    environ = {"CACHECORE_BACKEND": "slow"} if way == "environment" else {}
    registry = registry_of(backend("fast", priority=90), backend("slow", load=Slow), environ=environ)

    engine = open_engine(plan_set(kv_plan()), 1, registry=registry, backend="slow" if way == "argument" else None)

    assert engine.stats().backend == "slow"


def test_open_engine_never_falls_back_from_a_forced_backend():
    registry = registry_of(backend("fast", probe=lambda device: "no card"))

    with pytest.raises(NoBackendError, match=r"backend 'fast', which is forced, does not serve null"):
        open_engine(plan_set(kv_plan()), 1, registry=registry, backend="fast")


def test_open_engine_without_a_backend_gives_the_pip_line():
    with pytest.raises(NoBackendError, match=r"python -m pip install ./plugins/cpu"):
        open_engine(plan_set(kv_plan()), 1, device="cpu", registry=PluginRegistry(environ={}))


@pytest.mark.parametrize("loaded", [None, ByteBackend, {}])
def test_what_loads_as_no_backend_is_refused(loaded):
    registry = registry_of(backend("broken", load=lambda: loaded))

    with pytest.raises(PluginError, match=r"backend 'broken' of \S+: load\(\) returned .*, which is no CacheBackend"):
        open_engine(plan_set(kv_plan()), 1, registry=registry)


def test_the_default_registry_is_filled_on_the_first_call_only(monkeypatch):
    monkeypatch.setenv("CACHECORE_PLUGINS", "none-of-the-installed")
    default_registry.cache_clear()

    first = default_registry()

    assert default_registry() is first
    assert [record.info.name for record in first.backends] == ["bytes"]
    with open_engine(plan_set(kv_plan()), 1) as engine:
        assert engine.stats().backend == "bytes"
    assert build(kv=KV, policy=None).backend == "bytes"
    default_registry.cache_clear()


def test_import_imports_no_array_library():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'triton']));"
        "import cachecore; plan = cachecore.StandardLayoutPolicy(); print(len(cachecore.__all__))"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(run.stdout) == len(cachecore.__all__)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"groups": [3]}, "groups must be of type GroupSpec, not 3"),
        ({"states": [3]}, r"states must be StateCacheRequest or \(shape, dtype\), not 3"),
        ({"modules": 3}, "modules must be a sequence, not 3"),
        ({"hints": 3}, "hints must be LayoutHints, not 3"),
        ({"registry": 3, "policy": None}, "registry must be a PluginRegistry, not 3"),
        ({"registry": (), "policy": None}, r"registry must be a PluginRegistry, not \(\)"),
        ({"backend": 3, "policy": None}, "backend must be a name, or name@distribution, not 3"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(more, message):
    with pytest.raises(TypeError, match=message):
        build(**{"kv": KV, **more})


def test_open_engine_wants_a_plan_set():
    with pytest.raises(TypeError, match="plans must be a CachePlanSet, not None"):
        open_engine(None, 4)


@pytest.mark.parametrize("registry", [3, "plugins", [], PluginRegistry])
def test_open_engine_wants_a_registry(registry):
    with pytest.raises(TypeError, match="registry must be a PluginRegistry, not "):
        open_engine(plan_set(kv_plan()), 4, registry=registry)


@pytest.mark.parametrize("failure", [RuntimeError("no driver"), SystemExit(3), ImportError("no torch")])
def test_a_backend_that_cannot_be_loaded_is_named(failure):
    def load():
        raise failure

    with pytest.raises(PluginError, match=r"backend 'broken' of \S+: load\(\) raised \w+: ") as refused:
        open_engine(plan_set(kv_plan()), 1, registry=registry_of(backend("broken", load=load)))

    assert refused.value.__cause__ is failure
