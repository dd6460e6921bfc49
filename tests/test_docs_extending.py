"""What docs/extending.md shows runs as it stands there."""

from __future__ import annotations

from recgrad.config.check.unsupported import KINDS
from recgrad.config.proto import loss_pb2, metric_pb2, model_pb2, optimizer_pb2
from recgrad.training.capabilities import available


def test_a_class_of_ones_own_is_available_wherever_the_schema_takes_one() -> None:
    """The check refuses what is not available, and with it every config that names such a class."""
    messages = (
        optimizer_pb2.DenseOptimizer,
        optimizer_pb2.PartOptimizer,
        optimizer_pb2.SparseOptimizer,
        optimizer_pb2.SparsePartOptimizer,
        loss_pb2.LossConfig,
        metric_pb2.MetricConfig,
        model_pb2.ModelConfig,
    )
    known = available()
    found = 0
    for message in messages:
        for field in message.DESCRIPTOR.fields:
            if field.message_type is not None and field.message_type.name == "CustomComponent":
                kind = KINDS[(message.DESCRIPTOR.name, field.containing_oneof.name)]
                assert field.name in known[kind], f"{message.DESCRIPTOR.name}.{field.name}"
                found += 1
    assert found == len(messages)
