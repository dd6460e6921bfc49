"""Models, one file each: the classes, `MODELS`, which lists them, and `build_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names

__all__ = [
    "DBMTL",
    "DCNV1",
    "DCNV2",
    "DLRM",
    "DSSM",
    "DSSMV2",
    "DeepFM",
    "MMoE",
    "MODELS",
    "MaskNet",
    "Model",
    "MultiTower",
    "MultiTowerDIN",
    "PEPNet",
    "PLE",
    "SimpleMultiTask",
    "WideAndDeep",
    "WuKong",
    "XDeepFM",
    "build_model",
]

if TYPE_CHECKING:
    from recgrad.models.base import MODELS, Model
    from recgrad.models.build import build_model
    from recgrad.models.dbmtl import DBMTL
    from recgrad.models.dcn_v1 import DCNV1
    from recgrad.models.dcn_v2 import DCNV2
    from recgrad.models.deepfm import DeepFM
    from recgrad.models.dlrm import DLRM
    from recgrad.models.dssm import DSSM
    from recgrad.models.dssm_v2 import DSSMV2
    from recgrad.models.mask_net import MaskNet
    from recgrad.models.mmoe import MMoE
    from recgrad.models.multi_tower import MultiTower
    from recgrad.models.multi_tower_din import MultiTowerDIN
    from recgrad.models.pepnet import PEPNet
    from recgrad.models.ple import PLE
    from recgrad.models.simple_multi_task import SimpleMultiTask
    from recgrad.models.wide_and_deep import WideAndDeep
    from recgrad.models.wukong import WuKong
    from recgrad.models.xdeepfm import XDeepFM
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "DBMTL": "recgrad.models.dbmtl",
            "DCNV1": "recgrad.models.dcn_v1",
            "DCNV2": "recgrad.models.dcn_v2",
            "DLRM": "recgrad.models.dlrm",
            "DSSM": "recgrad.models.dssm",
            "DSSMV2": "recgrad.models.dssm_v2",
            "DeepFM": "recgrad.models.deepfm",
            "MMoE": "recgrad.models.mmoe",
            "MODELS": "recgrad.models.base",
            "MaskNet": "recgrad.models.mask_net",
            "Model": "recgrad.models.base",
            "MultiTower": "recgrad.models.multi_tower",
            "MultiTowerDIN": "recgrad.models.multi_tower_din",
            "PEPNet": "recgrad.models.pepnet",
            "PLE": "recgrad.models.ple",
            "SimpleMultiTask": "recgrad.models.simple_multi_task",
            "WideAndDeep": "recgrad.models.wide_and_deep",
            "WuKong": "recgrad.models.wukong",
            "XDeepFM": "recgrad.models.xdeepfm",
            "build_model": "recgrad.models.build",
        },
    )
