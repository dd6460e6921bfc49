"""A component is said once: what its message in the schema says is what its class takes, for all kinds.

The schema is the promise to users, so it names the defaults; the class is what computes, and what
Python users call. Nothing may be set that no class takes, and both must have the same defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import message_factory

from recgrad.check.capabilities import REGISTRIES, messages, schema_messages
from recgrad.check.unsupported import KINDS as KINDS_BY_ONEOF
from recgrad.config.messages import to_kwargs
from recgrad.models.build import SETTINGS
from recgrad.optim.groups import FALLBACK

# Features and samplers take their whole message, and a reader has none of its own.
KINDS = sorted(set(REGISTRIES) - {"feature", "sampler", "reader"})

# Fields whose default in the schema is not what an unset one means, and why.
UNSET_MEANS_OTHERWISE = {
    "fused": "unset, torch's fused form is taken where there is one",
    "weight_decay_mode": "row-wise Adagrad's is NONE as in TorchEasyRec; a decay without a mode is refused",
}

# What the base class or the builder of a kind takes for all of its components.
SHARED = {
    "model": {"wide_embedding_dim", "wide_init_fn"},
    "sequence_encoder": {"name", "input"},
    "train_metric": {"exact"},  # refused: a metric that follows recent batches keeps no rows
}


def components() -> Iterator[Any]:
    for kind in KINDS:
        messages = schema_messages(kind)
        for name, component in REGISTRIES[kind].items():
            yield pytest.param(kind, component, messages[name], id=f"{kind}-{name}")


def parameters_of(component: Any) -> dict[str, Any]:
    """Settings that a class or function takes, with their defaults; a class hands on others to its base."""
    target = inspect.unwrap(component)
    if isinstance(target, type) and (method := getattr(target, "settings_method", None)):
        target = inspect.unwrap(getattr(target, method))
    found: dict[str, Any] = {}
    for one in target.__mro__ if isinstance(target, type) else [target]:
        parameters = inspect.signature(one).parameters
        found = {name: p.default for name, p in parameters.items()} | found
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return found


def fallback_parameters(component: Any) -> set[str]:
    """Settings of the optimizer that takes what another leaves; their defaults are the schema's own."""
    fallback = getattr(component, "fallback", None)
    return {FALLBACK + name for name in parameters_of(fallback)} if fallback else set()


@pytest.mark.parametrize(("kind", "component", "message"), list(components()))
def test_class_and_message_agree(kind: str, component: Any, message: Any) -> None:
    taken = parameters_of(component)
    elsewhere = SHARED.get(kind, set()) | fallback_parameters(component)
    promised = to_kwargs(message_factory.GetMessageClass(message)())
    for field in message.fields:
        name = SETTINGS.get(field.name, field.name) if kind == "model" else field.name
        if name in elsewhere:
            continue
        assert name in taken, f"{message.name}.{field.name}: no argument of {component} takes it"
        default = taken[name]
        if default is inspect.Parameter.empty or field.is_repeated or field.name not in promised:
            continue
        if field.name not in UNSET_MEANS_OTHERWISE:
            assert promised[field.name] == default, f"{message.name}.{field.name} and {component}"


def test_the_comparison_sees_every_kind_and_finds_a_difference() -> None:
    from recgrad.optim.dense import DENSE_OPTIMIZERS

    assert {param.values[0] for param in components()} == set(KINDS)

    class Other(DENSE_OPTIMIZERS["lion_optimizer"]):  # type: ignore[misc]
        def __init__(self, params: Any, *, lr: float = 7.0, betas: Any = None, **others: Any) -> None: ...

    with pytest.raises(AssertionError, match="lr"):
        test_class_and_message_agree(
            "dense_optimizer", Other, schema_messages("dense_optimizer")["lion_optimizer"]
        )


# Text configs name a component right below its place (`dense_optimizer { adam_optimizer {} … {} }`), which
# only a oneof of each place can parse: a message of its own would put a further pair of braces around it.
@pytest.mark.parametrize(
    ("kind", "oneof", "narrower"),
    [
        # A stage of a sequence is no sequence, and follows no metric, as it ends by its steps.
        (
            "schedule",
            "learning_rate",
            {"Stage": {"sequence_learning_rate", "reduce_on_plateau_learning_rate"}},
        ),
        ("dense_optimizer", "optimizer", {}),
        ("sparse_optimizer", "optimizer", {}),
    ],
)
def test_all_places_of_a_kind_choose_from_the_same(
    kind: str, oneof: str, narrower: dict[str, set[str]]
) -> None:
    whole = {name: message.name for name, message in schema_messages(kind).items()}
    places = [message for (message, _), other in KINDS_BY_ONEOF.items() if other == kind]
    assert len(places) > 1
    for place in places:
        choices = {f.name: f.message_type.name for f in messages()[place].oneofs_by_name[oneof].fields}
        missing = narrower.get(place, set())
        assert choices == {name: message for name, message in whole.items() if name not in missing}
