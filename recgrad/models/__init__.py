"""Models, one file each: the classes, `MODELS`, which lists them, and `build_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names

__all__ = [
    "AITM",
    "AutoInt",
    "DAT",
    "DBMTL",
    "DC2VR",
    "DCNV1",
    "DCNV2",
    "DLRM",
    "DSSM",
    "DSSMV2",
    "DeepFM",
    "ESMM",
    "EulerNet",
    "FiBiNET",
    "FinalMLP",
    "FinalNet",
    "GDCN",
    "HSTU",
    "MIND",
    "MMoE",
    "MODELS",
    "MaskNet",
    "Model",
    "MultiTower",
    "MultiTowerDIN",
    "ONN",
    "PEPNet",
    "PLE",
    "PNN",
    "RankMixer",
    "RocketLaunching",
    "SASRec",
    "STEM",
    "SimpleMultiTask",
    "TDM",
    "WideAndDeep",
    "WuKong",
    "XDeepFM",
    "build_model",
]

if TYPE_CHECKING:
    from recgrad.models.aitm import AITM
    from recgrad.models.autoint import AutoInt
    from recgrad.models.base import MODELS, Model
    from recgrad.models.build import build_model
    from recgrad.models.dat import DAT
    from recgrad.models.dbmtl import DBMTL
    from recgrad.models.dc2vr import DC2VR
    from recgrad.models.dcn_v1 import DCNV1
    from recgrad.models.dcn_v2 import DCNV2
    from recgrad.models.deepfm import DeepFM
    from recgrad.models.dlrm import DLRM
    from recgrad.models.dssm import DSSM
    from recgrad.models.dssm_v2 import DSSMV2
    from recgrad.models.esmm import ESMM
    from recgrad.models.eulernet import EulerNet
    from recgrad.models.fibinet import FiBiNET
    from recgrad.models.final_mlp import FinalMLP
    from recgrad.models.final_net import FinalNet
    from recgrad.models.gdcn import GDCN
    from recgrad.models.hstu import HSTU
    from recgrad.models.mask_net import MaskNet
    from recgrad.models.mind import MIND
    from recgrad.models.mmoe import MMoE
    from recgrad.models.multi_tower import MultiTower
    from recgrad.models.multi_tower_din import MultiTowerDIN
    from recgrad.models.onn import ONN
    from recgrad.models.pepnet import PEPNet
    from recgrad.models.ple import PLE
    from recgrad.models.pnn import PNN
    from recgrad.models.rank_mixer import RankMixer
    from recgrad.models.rocket_launching import RocketLaunching
    from recgrad.models.sasrec import SASRec
    from recgrad.models.simple_multi_task import SimpleMultiTask
    from recgrad.models.stem import STEM
    from recgrad.models.tdm import TDM
    from recgrad.models.wide_and_deep import WideAndDeep
    from recgrad.models.wukong import WuKong
    from recgrad.models.xdeepfm import XDeepFM
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "AITM": "recgrad.models.aitm",
            "AutoInt": "recgrad.models.autoint",
            "DC2VR": "recgrad.models.dc2vr",
            "DAT": "recgrad.models.dat",
            "DBMTL": "recgrad.models.dbmtl",
            "DCNV1": "recgrad.models.dcn_v1",
            "DCNV2": "recgrad.models.dcn_v2",
            "DLRM": "recgrad.models.dlrm",
            "DSSM": "recgrad.models.dssm",
            "DSSMV2": "recgrad.models.dssm_v2",
            "DeepFM": "recgrad.models.deepfm",
            "ESMM": "recgrad.models.esmm",
            "EulerNet": "recgrad.models.eulernet",
            "FiBiNET": "recgrad.models.fibinet",
            "FinalMLP": "recgrad.models.final_mlp",
            "FinalNet": "recgrad.models.final_net",
            "GDCN": "recgrad.models.gdcn",
            "HSTU": "recgrad.models.hstu",
            "MIND": "recgrad.models.mind",
            "MMoE": "recgrad.models.mmoe",
            "MODELS": "recgrad.models.base",
            "MaskNet": "recgrad.models.mask_net",
            "Model": "recgrad.models.base",
            "MultiTower": "recgrad.models.multi_tower",
            "MultiTowerDIN": "recgrad.models.multi_tower_din",
            "ONN": "recgrad.models.onn",
            "PEPNet": "recgrad.models.pepnet",
            "PLE": "recgrad.models.ple",
            "PNN": "recgrad.models.pnn",
            "RocketLaunching": "recgrad.models.rocket_launching",
            "RankMixer": "recgrad.models.rank_mixer",
            "SASRec": "recgrad.models.sasrec",
            "STEM": "recgrad.models.stem",
            "SimpleMultiTask": "recgrad.models.simple_multi_task",
            "TDM": "recgrad.models.tdm",
            "WideAndDeep": "recgrad.models.wide_and_deep",
            "WuKong": "recgrad.models.wukong",
            "XDeepFM": "recgrad.models.xdeepfm",
            "build_model": "recgrad.models.build",
        },
    )
