"""Names that people type for what a config calls otherwise, so that errors can suggest the right one."""

from __future__ import annotations

from collections.abc import Iterable

# By what a name means, the config names of it; an error suggests the one that may stand where the name stood:
# `mse` is a metric and a loss. Spelling, endings such as _optimizer and slips need no line here.
_CALLED = {
    "adam_optimizer": "adamax adabelief adan adamw nadam radam lazyadam sparseadam amsgrad fusedadam",
    "adamw_optimizer": "adamw8bit decoupledadam",
    "adagrad_optimizer": "sparseadagrad rowwiseadagrad",
    "rowwise_adagrad_optimizer": "rowwiseadagrad exactrowwiseadagrad",
    "partial_rowwise_adam_optimizer": "rowwiseadam",
    "sgd_optimizer": "momentum nesterov gradientdescent",
    "lars_sgd_optimizer": "lars",
    "schedule_free_adamw_optimizer": "schedulefree schedulefreeadam",
    "constant_learning_rate": "fixed none",
    "cosine_annealing_learning_rate": "cosine cosinedecay cosineannealing cosinewarmup warmupcosine",
    "cosine_annealing_warm_restarts_learning_rate": "sgdr cosinerestarts cosinewarmrestarts warmrestarts",
    "exponential_decay_learning_rate": "exponential exp expdecay",
    "inverse_sqrt_learning_rate": "noam rsqrt inversesquareroot inversesqrtdecay",
    "linear_decay_learning_rate": "linear linearwarmup warmup warmuplinear",
    "manual_step_learning_rate": "multistep piecewise piecewiseconstant milestones",
    "one_cycle_learning_rate": "cyclic cycle superconvergence",
    "polynomial_decay_learning_rate": "poly polynomial polydecay",
    "reduce_on_plateau_learning_rate": "plateau reducelronplateau",
    "sequence_learning_rate": "sequential chained",
    "step_decay_learning_rate": "step steplr",
    "warmup_stable_decay_learning_rate": "wsd trapezoidal trapezoid",
    "binary_cross_entropy": "bce bcewithlogits logloss logistic sigmoid sigmoidcrossentropy ce crossentropy",
    "softmax_cross_entropy": "ce crossentropy categoricalcrossentropy softmax nll infonce inbatchsoftmax",
    "l2_loss": "mse rmse meansquarederror squarederror regression",
    "binary_focal_loss": "focal",
    "bpr_loss": "bayesianpersonalizedranking pairwise",
    "cosine_contrastive_loss": "ccl simplex",
    "gbce_loss": "generalizedbce generalizedbinarycrossentropy gsasrec",
    "full_softmax": "fullsoftmaxcrossentropy fullcrossentropy",
    "accuracy": "acc binaryaccuracy top1",
    "auc": "rocauc aucroc auroc binaryauc prauc aucpr",
    "calibration": "copc pcoc ece calibrationerror",
    "grouped_auc": "gauc uauc userauc groupauc",
    "grouped_xauc": "gxauc",
    "hit_rate_at_k": "hr hit hitrate hits hitratio",
    "log_loss": "bce binarycrossentropy crossentropy ce nll",
    "mean_absolute_error": "mae l1 l1loss absoluteerror",
    "mean_squared_error": "mse rmse l2 l2loss rootmeansquarederror squarederror",
    "mrr": "meanreciprocalrank reciprocalrank",
    "multiclass_auc": "mauc macroauc",
    "ndcg_at_k": "ndcg dcg",
    "normalized_entropy": "ne rig nentropy normalisedentropy",
    "recall_at_k": "recall",
    "dcn_v2": "dcn deepcross deepandcross dcnmix",
    "deepfm": "fm factorizationmachine",
    "dlrm": "facebookdlrm",
    "dssm": "twotower twotowers dualencoder",
    "multi_tower": "dnn mlp tower towers",
    "multi_tower_din": "din deepinterestnetwork",
    "simple_multi_task": "sharedbottom multitask hardsharing",
    "ple": "cgc progressivelayeredextraction",
    "wide_and_deep": "wdl wnd widedeep wideanddeep",
    "xdeepfm": "cin",
    "id_feature": "categorical sparse category hash embedding",
    "raw_feature": "numeric numerical dense float continuous",
    "combo_feature": "cross crossed",
    "expr_feature": "expression",
    "sequence_id_feature": "sequence history",
    "self_attention_encoder": "transformer attention mha",
    "pooling_encoder": "mean sum average pool",
    "din_encoder": "targetattention",
}
_ENDINGS = (
    "optimizer",
    "learningrate",
    "scheduler",
    "schedule",
    "feature",
    "encoder",
    "dataset",
    "sampler",
    "metric",
    "model",
    "loss",
    "lr",
)

SYNONYMS: dict[str, tuple[str, ...]] = {}
for _name, _words in _CALLED.items():
    for _word in _words.split():
        SYNONYMS[_word] = (*SYNONYMS.get(_word, ()), _name)


def folded(name: str) -> str:
    """A name without case, underscores, dashes and spaces."""
    return "".join(c for c in name.lower() if c not in "_- ")


def stem(name: str) -> str:
    """A folded name without the word for its kind: `adam` of `adam_optimizer` and of `Adam`."""
    short = folded(name)
    return next((cut for end in _ENDINGS if (cut := short.removesuffix(end)) not in (short, "")), short)


def same_meaning(name: str, known: Iterable[str]) -> str | None:
    """The known name that means the same as `name`: another spelling of it, or a synonym; or None."""
    by_fold: dict[str, str] = {}
    by_stem: dict[str, str] = {}
    for other in known:
        by_fold.setdefault(folded(other), other)
        by_stem.setdefault(stem(other), other)
    if folded(name) in by_fold:
        return by_fold[folded(name)]
    if stem(name) in by_stem:
        return by_stem[stem(name)]
    meant = {*SYNONYMS.get(folded(name), ()), *SYNONYMS.get(stem(name), ())}
    return next((other for other in by_fold.values() if other in meant), None)
