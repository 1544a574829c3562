"""What NNX offers inside a step: it works and loses no update, or an error says what to write."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import replicax as rx
from replicax.core import errors
from replicax.integrations.flax import distribute
from replicax.integrations.flax.variables import variable_in

X = np.random.RandomState(0).randn(7, 4).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, rngs, sows=False):
        self.first = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs, deterministic=True)
        self.last = nnx.Linear(3, 1, rngs=rngs)
        self.sows = sows

    def __call__(self, x):
        x = jax.nn.tanh(self.norm(self.first(x)))
        if self.sows:
            self.sow(nnx.Intermediate, "hidden", x)
        return self.last(self.dropout(x))


def loss_of(model, x):
    return (model(x) ** 2).sum() / len(X)


@pytest.fixture(
    params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["compiled", "eager"]
)
def run(request):
    return lambda strategy, step, *args: strategy.run(
        rx.function(step) if request.param else step, args=args
    )


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def made(strategy, **options):
    with strategy.scope():
        model = Net(nnx.Rngs(0), **options)
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def plain_gradient(model, optimizer):
    def step(x):
        optimizer.update(model, nnx.grad(loss_of)(model, x))

    return step


def jitted_gradient(model, optimizer):
    def step(x):
        optimizer.update(model, nnx.jit(nnx.grad(loss_of))(model, x))

    return step


def gradient_of_a_captured_model(model, optimizer):
    def step(x):
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        loss = lambda params: loss_of(nnx.merge(graphdef, params, rest), x)  # noqa: E731
        optimizer.update(model, jax.grad(loss)(params))

    return step


def remat(model, optimizer):
    def step(x):
        loss = lambda model: (nnx.remat(lambda m, x: m(x))(model, x) ** 2).sum() / len(X)  # noqa: E731
        optimizer.update(model, nnx.grad(loss)(model))

    return step


def reduced_before(model, optimizer):
    def step(x):
        grads = nnx.grad(loss_of)(model, x)
        optimizer.update(model, rx.get_replica_context().all_reduce("SUM", grads))

    return step


def update_by_hand(model, optimizer):
    def step(x):
        grads = nnx.grad(loss_of)(model, x)
        grads = rx.get_replica_context().all_reduce("SUM", grads)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))

    return step


WAYS = [
    plain_gradient,
    jitted_gradient,
    gradient_of_a_captured_model,
    remat,
    reduced_before,
    update_by_hand,
]


def by_one_device():
    """The same two steps by NNX, a share after the other."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    statistics = [nnx.state(nnx.clone(model), nnx.BatchStat) for _ in range(2)]
    for _ in range(2):
        grads = []
        for share, x in enumerate((X[:4], X[4:])):
            nnx.update(model, statistics[share])
            grads.append(nnx.grad(loss_of)(model, x))
            statistics[share] = nnx.state(nnx.clone(model), nnx.BatchStat)
        optimizer.update(model, jax.tree.map(jnp.add, *grads))
    nnx.update(model, jax.tree.map(lambda a, b: (a + b) / 2, *statistics))
    return jax.tree.leaves(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_a_gradient_updates_once(strategy, run, way):
    model, optimizer = made(strategy)
    step = way(model, optimizer)
    for _ in range(2):
        run(strategy, step, strategy.distribute_batch(X))
    found = jax.tree.leaves(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    for value, wanted in zip(found, by_one_device(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_a_module_given_as_argument_is_the_module_itself(strategy, run):
    model, optimizer = made(strategy)

    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(loss_of)(model, x))

    for _ in range(2):
        run(strategy, step, model, optimizer, strategy.distribute_batch(X))
    found = jax.tree.leaves(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    for value, wanted in zip(found, by_one_device(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    assert int(optimizer.step[...]) == 2


def test_a_loop_inside_a_compiled_step_updates_each_time(strategy):
    model, optimizer = made(strategy)

    @rx.function
    def step(x):
        def body(carry, _):
            optimizer.update(model, nnx.grad(loss_of)(model, x))
            return carry, None

        jax.lax.scan(body, 0, None, length=2)

    strategy.run(step, args=(strategy.distribute_batch(X),))
    found = jax.tree.leaves(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    for value, wanted in zip(found, by_one_device(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_nnx_scan_and_vmap_work_in_a_step(strategy, run):
    model, _ = made(strategy)

    def step(x):
        @nnx.scan(in_axes=(nnx.Carry, None), length=3, out_axes=nnx.Carry)
        def body(model, x):
            model(x)
            return model

        body(model, x)
        return nnx.vmap(lambda model, row: model.first(row).sum(), in_axes=(None, 0))(model, x)

    rows = run(strategy, step, strategy.distribute_batch(X))
    wanted = np.asarray(model.first(X)).sum(1)
    np.testing.assert_allclose(strategy.gather(rows, axis=0), wanted, rtol=1e-5, atol=1e-6)
    shares = [np.asarray(model.first(x)).mean(0) * (1 - 0.5**3) for x in (X[:4], X[4:])]
    np.testing.assert_allclose(model.norm.mean[...], sum(shares) / 2, rtol=1e-4, atol=1e-6)


def test_metrics_are_summed_over_the_replicas_when_read(run):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(3)])
    with strategy.scope():
        metrics = nnx.MultiMetric(mean=nnx.metrics.Average("loss"), right=nnx.metrics.Accuracy())
    labels = X.argmax(1) * (np.arange(7) % 2)

    def step(x, y):
        metrics.update(loss=x.sum(1), logits=x, labels=y)

    for _ in range(2):
        for _ in range(2):
            run(strategy, step, *strategy.distribute_batch((X, labels)))
        found = metrics.compute()
        np.testing.assert_allclose(found["mean"], X.sum(1).mean(), rtol=1e-5)
        np.testing.assert_allclose(found["right"], (X.argmax(1) == labels).mean())
        metrics.reset()


def test_train_and_eval_between_steps_count_in_compiled_ones(strategy):
    model, _ = made(strategy)
    forward = rx.function(lambda x: model(x))
    x = strategy.distribute_batch(X)
    for _ in range(4):
        model.train()
        trained = strategy.gather(strategy.run(forward, args=(x,)), axis=0)
        model.eval()
        first, second = (strategy.gather(strategy.run(forward, args=(x,)), axis=0) for _ in "ab")
        assert not np.array_equal(trained, first)
        np.testing.assert_array_equal(first, second)
    assert forward.trace_count <= 4  # what was compiled once is found again


def test_a_view_in_a_step_evaluates_without_changing_the_model(strategy, run):
    model, _ = made(strategy)

    def step(x):
        return nnx.view(model, use_running_average=True)(x)

    found = strategy.gather(run(strategy, step, strategy.distribute_batch(X)), axis=0)
    model.eval()
    np.testing.assert_allclose(found, model(X), rtol=1e-5, atol=1e-6)


def test_captured_values_are_those_of_each_replica(strategy, run):
    model, _ = made(strategy, sows=True)

    def step(x):
        _, sown = nnx.capture(nnx.Intermediate)(lambda model, x: model(x))(model, x)
        return jax.tree.leaves(sown)[0]

    found = run(strategy, step, strategy.distribute_batch(X))
    assert [part.shape for part in strategy.experimental_local_results(found)] == [(4, 3), (3, 3)]


def test_an_empty_share_leaves_statistics_alone(run):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(3)])
    model, optimizer = made(strategy)
    run(strategy, plain_gradient(model, optimizer), strategy.distribute_batch(X[:2]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nnx.state(model, nnx.BatchStat)))


def test_a_model_of_the_step_itself_is_each_replicas_own(strategy, run):
    def step(x):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(loss_of)(model, x))
        return model.last.bias[...]

    first, second = run(strategy, step, strategy.distribute_batch(X)).values
    assert not np.array_equal(first, second)


def test_copies_are_plain(strategy):
    model, _ = made(strategy)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model)):
        np.testing.assert_array_equal(copied.first.kernel[...], model.first.kernel[...])
        with pytest.raises(errors.ForeignStateError, match=r"distribute\(model, strategy\)"):
            strategy.run(lambda copied=copied: copied(X))


def test_distribute_takes_over_what_was_made_outside(strategy, run):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    assert distribute((model, optimizer), strategy) == (model, optimizer)
    for _ in range(2):
        run(strategy, plain_gradient(model, optimizer), strategy.distribute_batch(X))
    found = jax.tree.leaves(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    for value, wanted in zip(found, by_one_device(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


# -- misuses ----------------------------------------------------------------------------------


def of_a_model_made_outside(strategy):
    model = Net(nnx.Rngs(0))
    return lambda x: model(x)


def of_an_optimizer_made_outside(strategy):
    with strategy.scope():
        model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    return plain_gradient(model, optimizer)


def of_another_strategy(strategy):
    model, _ = made(rx.MirroredStrategy(["CPU:0"]))
    return lambda x: model(x)


def with_an_update_inside_nnx_jit(strategy):
    model, optimizer = made(strategy)

    @nnx.jit
    def inner(model, optimizer, x):
        optimizer.update(model, nnx.grad(loss_of)(model, x))

    return lambda x: inner(model, optimizer, x)


def with_gradients_that_are_not_reduced(strategy):
    model, _ = made(strategy)

    def step(x):
        params, grads = nnx.state(model, nnx.Param), nnx.grad(loss_of)(model, x)
        nnx.update(model, jax.tree.map(lambda p, g: p - g, params, grads))

    return step


def with_gradients_of_all_variables(strategy):
    model, optimizer = made(strategy)
    all_floats = nnx.Any(nnx.Param, nnx.BatchStat)

    def step(x):
        optimizer.update(model, nnx.grad(loss_of, argnums=nnx.DiffState(0, all_floats))(model, x))

    return step


def with_eval_inside(strategy):
    model, _ = made(strategy)
    return lambda x: (model.eval(), model(x))


def with_sown_values(strategy):
    model, _ = made(strategy, sows=True)
    return lambda x: model(x)


MISUSES = [
    (of_a_model_made_outside, "ForeignStateError", r"integrations\.flax\.distribute"),
    (of_an_optimizer_made_outside, "ForeignStateError", r"integrations\.flax\.distribute"),
    (of_another_strategy, "VariableError", "was created under"),
    (with_an_update_inside_nnx_jit, "VariableError", "call optimizer.update outside of them"),
    (
        with_gradients_that_are_not_reduced,
        "VariableError|TraceError",
        "(?i)is mirrored, .* reduce (what they|the value)",
    ),
    (
        with_gradients_of_all_variables,
        "VariableError",
        r"got 8 gradients for 6 parameters.*argnums=nnx\.DiffState\(0, wrt\)",
    ),
    (with_eval_inside, "ContextError", r"Set it before Strategy\.run"),
    (with_sown_values, "ContextError", r"nnx\.capture\(nnx\.Intermediate\)"),
]


@pytest.mark.parametrize(
    ("misuse", "kind", "text"), MISUSES, ids=[misuse.__name__ for misuse, *_ in MISUSES]
)
def test_a_misuse_is_a_named_error(strategy, run, misuse, kind, text):
    with pytest.raises(errors.ReplicaxError, match=text) as raised:
        run(strategy, misuse(strategy), strategy.distribute_batch(X))
    assert type(raised.value).__name__ in kind.split("|")


def test_an_assignment_by_some_replicas_is_an_error(strategy):
    model, _ = made(strategy)

    def step():
        if rx.get_replica_context().replica_id_in_sync_group == 0:
            model.last.bias[...] = jnp.ones(1)

    strategy.run(step)
    with pytest.raises(errors.VariableError, match=r"only the replicas \[0\] assigned it"):
        model.last.bias[...]


@pytest.mark.filterwarnings("ignore:Python branches on the replica id")
def test_an_assignment_by_some_replicas_is_an_error_when_compiled(strategy):
    model, _ = made(strategy)

    @rx.function
    def step():
        if rx.get_replica_context().replica_id_in_sync_group == 0:
            model.last.bias[...] = jnp.ones(1)

    with pytest.raises(errors.TraceError, match="is mirrored"):
        strategy.run(step)


def test_a_metric_that_is_no_sum_is_refused(strategy):
    with strategy.scope(), pytest.raises(errors.VariableError, match=r"Use nnx\.metrics\.Average"):
        nnx.metrics.Welford()
    with rx.MirroredStrategy(["CPU:0"]).scope():
        nnx.metrics.Welford()


def test_a_variable_that_jax_holds_is_refused(strategy):
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    model.kernel = nnx.Param(jnp.ones((2, 1)), ref=True)
    with pytest.raises(errors.VariableError, match="ref=True or hijax=True"):
        distribute(model, strategy)


def test_a_checkpoint_refuses_what_is_not_distributed(strategy, tmp_path):
    with strategy.scope():
        pass
    with pytest.raises(errors.ReplicaxError, match=r"at 'model/.*' that is not distributed"):
        rx.Checkpoint(model=Net(nnx.Rngs(0))).save(str(tmp_path / "at"))


def test_a_checkpoint_of_orbax_by_plain_nnx_restores(strategy, tmp_path):
    import orbax.checkpoint as ocp

    plain = Net(nnx.Rngs(7))
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "plain", nnx.to_pure_dict(nnx.state(plain, nnx.Param)))
    model, _ = made(strategy)
    with ocp.StandardCheckpointer() as reader:
        values = reader.restore(tmp_path / "plain", nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, values)
    nnx.update(model, state)
    for local in strategy.experimental_local_results(strategy.run(lambda: model.first.kernel[...])):
        np.testing.assert_array_equal(local, plain.first.kernel[...])


def test_random_streams_made_in_the_scope_serve_split_rngs(strategy):
    with strategy.scope():
        rngs = nnx.Rngs(0)
        with nnx.split_rngs(rngs, splits=3):
            assert rngs.default.count.shape == (3,)
        assert rngs.default.count.shape == ()
        assert int(rngs.default.count[...]) == 1


@pytest.mark.parametrize(
    ("axes", "rules"),
    [
        ((None, "logical_0"), ()),
        (("embed", "mlp"), (("embed", None), ("mlp", "logical_0"))),
    ],
    ids=["axes of the strategy", "names with rules of NNX"],
)
def test_the_metadata_of_nnx_cuts_a_variable(axes, rules):
    strategy = rx.MirroredStrategy(logical_devices=2)
    with nnx.logical_axis_rules(rules), strategy.scope():
        cut = nnx.with_partitioning(nnx.initializers.ones_init(), axes)
        layer = nnx.Linear(2, 4, kernel_init=cut, rngs=nnx.Rngs(0))
    held = variable_in(layer.kernel)
    assert held is not None
    assert held.name == "kernel"
    assert held.partition_dimensions == (1, 2)
    found = strategy.gather(strategy.run(lambda: layer(jnp.ones((1, 2)))), axis=0)
    np.testing.assert_allclose(found, np.full((4, 4), 2.0))


def test_metadata_of_other_axes_leaves_a_variable_whole():
    with rx.MirroredStrategy(logical_devices=2).scope():
        cut = nnx.with_partitioning(nnx.initializers.ones_init(), ("data", "model"))
        layer = nnx.Linear(2, 4, kernel_init=cut, rngs=nnx.Rngs(0))
    held = variable_in(layer.kernel)
    assert held is not None
    assert held.partition_dimensions == (1, 1)


def test_a_rule_finds_a_variable_by_its_path_and_its_slots_follow():
    class Tower(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(2, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

    rules = {"(first|layers/0)/kernel": [1, 2], "bias": None, "kernel": [2, 1]}
    strategy = rx.MirroredStrategy(logical_devices=2, partition_rules=rules)
    with strategy.scope():
        rngs = nnx.Rngs(0)
        tower = Tower(rngs)
        models = [tower, nnx.Sequential(nnx.Linear(2, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs))]
        optimizers = [nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param) for model in models]
    for model, optimizer, layers in zip(
        models, optimizers, [("first", "last"), ("layers/0", "layers/1")], strict=True
    ):
        leaves = [leaf for _, leaf in nnx.iter_graph((model, optimizer))]
        held = [variable_in(leaf) for leaf in leaves if isinstance(leaf, nnx.Variable)]
        found = {
            variable.name: variable.partition_dimensions
            for variable in held
            if variable is not None
        }
        for prefix in ("", "opt_state/0/mu/", "opt_state/0/nu/"):
            assert found[f"{prefix}{layers[0]}/kernel"] == (1, 2)
            assert found[f"{prefix}{layers[1]}/kernel"] == (2, 1)
            assert found[f"{prefix}{layers[0]}/bias"] == (1,)


def test_what_a_module_has_learned_stays_when_it_becomes_part_of_another(strategy):
    with strategy.scope():
        layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        layer.bias[...] = jnp.asarray([3.0, 4.0])
        model = nnx.Sequential(layer, nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    assert model.layers[0] is layer
    held = variable_in(layer.bias)
    assert held is not None
    assert held.name == "layers/0/bias"
    np.testing.assert_array_equal(layer.bias[...], [3.0, 4.0])


@pytest.mark.parametrize("name", ["adamw", "chain"])
def test_a_checkpoint_of_orbax_by_plain_nnx_goes_on_with_its_optimizer(strategy, tmp_path, name):
    import orbax.checkpoint as ocp

    schedule = optax.cosine_decay_schedule(0.1, 10)
    transformation = {
        "adamw": optax.adamw(0.1),
        "chain": optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(schedule, momentum=0.9)),
    }[name]
    pair = lambda: (  # noqa: E731
        lambda model: (model, nnx.Optimizer(model, transformation, wrt=nnx.Param))
    )(nnx.Linear(4, 3, rngs=nnx.Rngs(7)))

    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(loss_of)(model, x))

    plain = pair()
    step(*plain, X)
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "plain", nnx.to_pure_dict(nnx.state(plain)))
    with strategy.scope():
        model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        own = model, nnx.Optimizer(model, transformation, wrt=nnx.Param)
    state = nnx.state(own)
    with ocp.StandardCheckpointer() as reader:
        nnx.replace_by_pure_dict(state, reader.restore(tmp_path / "plain", nnx.to_pure_dict(state)))
    nnx.update(own, state)
    step(*plain, X)
    strategy.run(rx.function(lambda x: step(*own, x)), args=(strategy.distribute_batch(X),))
    for (_, found), (_, wanted) in zip(
        nnx.to_flat_state(nnx.state(own)), nnx.to_flat_state(nnx.state(plain)), strict=True
    ):
        np.testing.assert_allclose(found[...], wanted[...], rtol=1e-5, atol=1e-6)
