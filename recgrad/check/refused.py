"""What the config asks for and is not built, and what it says to no effect."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context, not_supported
from recgrad.config.proto.data_pb2 import DatasetType


@CHECKS.register("not built")
def check_built(context: Context) -> None:
    """Report components and fields that nothing here builds."""
    for path, what in context.refusals:
        context.problem(path, what)
    for path, why in context.idle:
        context.hint(path, why)
    if context.available is None or "reader" not in context.available:
        return
    if context.config.HasField("data_config"):
        name = DatasetType.Name(context.config.data_config.dataset_type)
        if name not in context.available["reader"]:
            context.problem("data_config.dataset_type", not_supported(name, context.available["reader"]))
