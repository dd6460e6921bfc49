"""What every registered metric promises."""

import copy
import inspect
import pickle
import re
import warnings

import pytest
import torch
import torchmetrics
from google.protobuf import text_format

import recgrad.metrics
from recgrad.config.messages import chosen, to_kwargs
from recgrad.config.proto.metric_pb2 import MetricConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.metrics import METRICS, UndefinedMetricWarning, build_metric

CONFIGS = {
    "auc {}": 1,
    "auc { exact: true }": 2,
    "multiclass_auc {}": 4,
    "multiclass_auc { exact: true average: 'weighted' }": 4,
    "recall_at_k {}": 1,
    "recall_at_k { top_k: 3 grouping_key: 'u' }": 1,
    "ndcg_at_k {}": 1,
    "ndcg_at_k { grouping_key: 'u' }": 1,
    "hit_rate_at_k {}": 1,
    "hit_rate_at_k { grouping_key: 'u' }": 1,
    "mrr {}": 1,
    "mrr { grouping_key: 'u' top_k: 4 }": 1,
    "mean_absolute_error {}": 1,
    "mean_squared_error {}": 1,
    "accuracy {}": 1,
    "accuracy { top_k: 2 }": 4,
    "grouped_auc { grouping_key: 'u' }": 1,
    "grouped_auc { grouping_key: 'u' weighting: POSITIVES }": 1,
    "xauc {}": 1,
    "xauc { exact: true }": 1,
    "xauc { in_batch: true }": 1,
    "grouped_xauc { grouping_key: 'u' }": 1,
    "grouped_xauc { grouping_key: 'u' exact: true }": 1,
    "normalized_entropy {}": 1,
    "log_loss {}": 1,
    "log_loss { eps: 0.001 }": 4,
    "calibration {}": 1,
}
every = pytest.mark.parametrize("text", CONFIGS)
SMALLER_IS_BETTER = {"log_loss", "mean_absolute_error", "mean_squared_error", "normalized_entropy"}


def plain(text: str, num_class: int | None = None):
    """The metric as a run builds it."""
    return build_metric(
        text_format.Parse(text, MetricConfig()), num_class=CONFIGS[text] if num_class is None else num_class
    )


@pytest.mark.parametrize("name", METRICS)
def test_which_end_is_better_is_known(name: str) -> None:
    expected = None if name == "calibration" else name not in SMALLER_IS_BETTER
    assert METRICS[name].higher_is_better is expected


def torch_kind(text: str):
    """The same as users import it, a torchmetrics.Metric."""
    name, message = chosen(text_format.Parse(text, MetricConfig()), "metric")
    cls = getattr(recgrad.metrics, type(plain(text)).__name__)
    kwargs = to_kwargs(message)
    if "num_class" in inspect.signature(cls).parameters:
        kwargs["num_class"] = CONFIGS[text]
    metric = cls(**kwargs)
    metric.config_name = name
    return metric


@pytest.fixture(params=[plain, torch_kind], ids=["plain", "torchmetrics"])
def built(request):
    return request.param


def arguments(text: str, metric, rows: int, seed: int = 0):
    """Predictions, labels and keys of the shapes that the metric takes."""
    generator = torch.Generator().manual_seed(seed)
    name = text.split()[0]
    if CONFIGS[text] > 2:
        preds = torch.rand((rows, 4), generator=generator).softmax(1)
        return preds, torch.randint(0, 4, (rows,), generator=generator)
    if name in ("recall_at_k", "ndcg_at_k", "hit_rate_at_k", "mrr") and not metric.needs_key:
        preds = torch.rand((rows, 9), generator=generator)
        return preds, torch.randint(0, 9, (rows,), generator=generator)
    columns = [torch.rand(rows, generator=generator), torch.randint(0, 2, (rows,), generator=generator)]
    if metric.needs_key:
        columns.append(torch.randint(0, 7, (rows,), generator=generator))
    return tuple(columns)


def numbers(value):
    return [v.item() for v in value.values()] if isinstance(value, dict) else [value.item()]


@every
def test_is_a_torchmetrics_metric_where_users_import_it(text):
    assert isinstance(torch_kind(text), torchmetrics.Metric)
    assert not isinstance(plain(text), torchmetrics.Metric)


@every
def test_knows_its_name(text, built):
    metric = built(text)
    assert metric.config_name == text.split()[0]
    assert metric.needs_key == ("grouping_key" in text)
    assert metric.grouping_key == ("u" if metric.needs_key else None)


@every
def test_value_is_finite_and_float64(text, built):
    metric = built(text)
    metric.update(*arguments(text, metric, 80))
    value = metric.compute()
    for item in value.values() if isinstance(value, dict) else [value]:
        assert item.dtype == torch.float64
        assert item.dim() == 0
        assert torch.isfinite(item)


# Pairs of a batch depend on the batches; test_xauc counts them.
@pytest.mark.parametrize("text", [text for text in CONFIGS if "in_batch" not in text])
def test_batches_add_up_to_the_whole(text, built):
    whole, parts = built(text), built(text)
    columns = arguments(text, whole, 90)
    whole.update(*columns)
    for part in (slice(60, 90), slice(0, 1), slice(1, 1), slice(1, 60)):
        parts.update(*(column[part] for column in columns))
    assert numbers(parts.compute()) == pytest.approx(numbers(whole.compute()), rel=1e-12)


@every
def test_no_rows_is_nan_with_one_warning(text, built):
    metric = built(text)
    metric.update(*arguments(text, metric, 0))
    with pytest.warns(UndefinedMetricWarning, match=metric.config_name) as caught:
        value = metric.compute()
    assert all(number != number for number in numbers(value))
    assert len(caught) == 1
    with pytest.warns(UndefinedMetricWarning):
        assert all(number != number for number in numbers(built(text).compute()))


@every
def test_nan_scores_are_an_error_that_names_the_row(text, built):
    metric = built(text)
    preds, *rest = arguments(text, metric, 20)
    preds.view(20, -1)[13, -1] = float("nan")
    with pytest.raises(RecgradError, match="1 of 20 predictions are nan, the first at row 13"):
        metric.update(preds, *rest)


@every
def test_one_row_never_crashes(text, built):
    metric = built(text)
    metric.update(*arguments(text, metric, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        numbers(metric.compute())


@every
def test_state_dict_round_trips_exactly(text, built, tmp_path):
    metric, other = built(text), built(text)
    metric.update(*arguments(text, metric, 50, 1))
    torch.save(metric.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert numbers(other.compute()) == numbers(metric.compute())
    for m in (metric, other):
        m.update(*arguments(text, m, 30, 2))
    assert numbers(other.compute()) == numbers(metric.compute())


@every
def test_reset_copies_and_pickles(text, built):
    metric = built(text)
    other = built(text)
    other.update(*arguments(text, metric, 40, 4))
    fresh = numbers(other.compute())
    metric.update(*arguments(text, metric, 50, 3))
    copies = [copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))]
    assert all(numbers(c.compute()) == numbers(metric.compute()) for c in copies)
    metric.reset()
    metric.update(*arguments(text, metric, 40, 4))
    assert numbers(metric.compute()) == fresh


@every
def test_calling_it_gives_the_batch_and_keeps_the_whole(text):
    called, updated = torch_kind(text), torch_kind(text)
    for seed in (5, 6):
        columns = arguments(text, called, 40, seed)
        alone = torch_kind(text)
        alone.update(*columns)
        updated.update(*columns)
        assert numbers(called(*columns)) == numbers(alone.compute())
    assert numbers(called.compute()) == pytest.approx(numbers(updated.compute()), rel=1e-12)


@every
def test_predictions_with_gradients_leave_no_graph(text, built):
    metric = built(text)
    preds, *rest = arguments(text, metric, 20)
    metric.update(preds.requires_grad_(), *rest)
    value = metric.compute()
    assert not any(v.requires_grad for v in (value.values() if isinstance(value, dict) else [value]))


def test_every_metric_of_the_schema_and_registry_is_tested_here():
    tested = {text.split()[0] for text in CONFIGS}
    fields = {field.name for field in MetricConfig.DESCRIPTOR.oneofs_by_name["metric"].fields}
    assert tested == set(METRICS) == fields - {"custom_metric"}


def test_they_work_together_in_a_collection_of_torchmetrics():
    texts = [text for text in CONFIGS if CONFIGS[text] <= 2 and not plain(text).needs_key]
    texts = [text for text in texts if not re.match("recall|ndcg|hit_rate|mrr|calibration", text)]
    together = torchmetrics.MetricCollection({text: torch_kind(text) for text in texts})
    alone = {text: plain(text) for text in together}
    for seed in range(3):
        columns = arguments("auc {}", alone["auc {}"], 50, seed)
        together.update(*columns)
        for metric in alone.values():
            metric.update(*columns)
    for text, value in together.compute().items():
        assert value == alone[text].compute(), text


def test_every_export_exists():
    for name in recgrad.metrics.__all__:
        assert getattr(recgrad.metrics, name) is not None
    with pytest.raises(AttributeError):
        _ = recgrad.metrics.NoSuchMetric


@pytest.mark.parametrize(
    ("text", "num_class", "message"),
    [
        ("auc {}", 3, "use multiclass_auc"),
        ("multiclass_auc {}", 1, "use auc"),
        ("multiclass_auc { average: 'micro' }", 3, "average must be one of"),
        ("accuracy { threshold: 0.3 }", 3, "threshold is for num_class 1 or 2"),
        ("accuracy { top_k: 2 }", 1, "top_k"),
        ("accuracy { top_k: 2 }", 2, "top_k"),
        ("recall_at_k { top_k: 0 }", 1, "metrics.recall_at_k: top_k must be at least 1, got 0"),
        ("auc { thresholds: 0 }", 1, "thresholds must be at least 2"),
        ("xauc { exact: true in_batch: true }", 1, "exact counts all pairs"),
        ("calibration { num_bins: 0 }", 1, "num_bins"),
        ("", 1, "no metric is set"),
        ("custom_metric { class_path: 'torch.nn.Linear' }", 1, "not a subclass of torchmetrics.Metric"),
    ],
)
def test_configs_that_cannot_work_are_refused(text, num_class, message):
    with pytest.raises(ConfigError, match=message):
        plain(text, num_class)


def test_custom_metric_is_built_with_its_params():
    metric = plain(
        "custom_metric { class_path: 'torchmetrics.classification.BinaryFBetaScore' "
        "params { fields { key: 'beta' value { number_value: 2.5 } } } }",
        1,
    )
    assert metric.beta == 2.5
    assert metric.config_name == "custom_metric"
    assert metric.needs_key is False
