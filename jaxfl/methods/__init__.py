"""The registry: every method by name.

A new method is one file, with its import and its registry row here; all other lists are derived from these.

>>> METHODS["fedavg"].paper
'McMahan et al., AISTATS 2017'
"""

from jaxfl.methods.apfl import apfl as apfl
from jaxfl.methods.averaging import fedavg as fedavg
from jaxfl.methods.averaging import fedprox as fedprox
from jaxfl.methods.averaging import fedsgd as fedsgd
from jaxfl.methods.base import Info as Info
from jaxfl.methods.base import Method as Method
from jaxfl.methods.base import Row as Row
from jaxfl.methods.cfl import PRESETS as CFL_PRESETS
from jaxfl.methods.cfl import cfl
from jaxfl.methods.cfl.layercfl import PRESETS as LAYERCFL_PRESETS
from jaxfl.methods.cfl.layercfl import adacfl, layercfl
from jaxfl.methods.cfl_gp import PRESETS as CFL_GP_PRESETS
from jaxfl.methods.cfl_gp import cfl_gp as cfl_gp
from jaxfl.methods.clove import clove as clove
from jaxfl.methods.ditto import ditto as ditto
from jaxfl.methods.fedala import fedala as fedala
from jaxfl.methods.fedamp import fedamp as fedamp
from jaxfl.methods.fedavg_ft import fedavg_ft as fedavg_ft
from jaxfl.methods.fedavg_ft import fedprox_ft as fedprox_ft
from jaxfl.methods.fedbabu import fedbabu as fedbabu
from jaxfl.methods.fedbn import fedbn as fedbn
from jaxfl.methods.fedcam import fesem_cam as fesem_cam
from jaxfl.methods.fedcam import ifca_cam as ifca_cam
from jaxfl.methods.fedcam import wecfl_cam as wecfl_cam
from jaxfl.methods.fedccfa import NO_WIRE as FEDCCFA_NO_WIRE
from jaxfl.methods.fedccfa import fedccfa as fedccfa
from jaxfl.methods.feddane import feddane as feddane
from jaxfl.methods.feddbe import feddbe as feddbe
from jaxfl.methods.feddrift import feddrift as feddrift
from jaxfl.methods.feddyn import PRESETS as FEDDYN_PRESETS
from jaxfl.methods.feddyn import feddyn as feddyn
from jaxfl.methods.fedem import PRESETS as FEDEM_PRESETS
from jaxfl.methods.fedem import fedem as fedem
from jaxfl.methods.fedgroup import fedgroup as fedgroup
from jaxfl.methods.fedgwc import PRESETS as FEDGWC_PRESETS
from jaxfl.methods.fedgwc import fedgwc as fedgwc
from jaxfl.methods.fednova import NO_WIRE as FEDNOVA_NO_WIRE
from jaxfl.methods.fednova import PRESETS as FEDNOVA_PRESETS
from jaxfl.methods.fednova import fednova as fednova
from jaxfl.methods.fedpac import NO_WIRE as FEDPAC_NO_WIRE
from jaxfl.methods.fedpac import fedpac as fedpac
from jaxfl.methods.fedper import fedper as fedper
from jaxfl.methods.fedproto import NO_WIRE as FEDPROTO_NO_WIRE
from jaxfl.methods.fedproto import fedproto as fedproto
from jaxfl.methods.fedrc import PRESETS as FEDRC_PRESETS
from jaxfl.methods.fedrc import fedrc as fedrc
from jaxfl.methods.fedrep import fedrep as fedrep
from jaxfl.methods.fedrod import fedrod as fedrod
from jaxfl.methods.fedsoft import PRESETS as FEDSOFT_PRESETS
from jaxfl.methods.fedsoft import fedsoft as fedsoft
from jaxfl.methods.fesem import PRESETS as FESEM_PRESETS
from jaxfl.methods.fesem import fesem as fesem
from jaxfl.methods.fesem_ma import fesem_ma as fesem_ma
from jaxfl.methods.flhc import flhc as flhc
from jaxfl.methods.flux import flux as flux
from jaxfl.methods.hypcluster import hypcluster as hypcluster
from jaxfl.methods.ifca import ifca as ifca
from jaxfl.methods.kfed import kfed as kfed
from jaxfl.methods.knnper import PRESETS as KNNPER_PRESETS
from jaxfl.methods.knnper import knnper as knnper
from jaxfl.methods.lg_fedavg import NO_WIRE as LG_FEDAVG_NO_WIRE
from jaxfl.methods.lg_fedavg import lg_fedavg as lg_fedavg
from jaxfl.methods.local import local as local
from jaxfl.methods.newcomer import GLOBAL_MODEL, Newcomer
from jaxfl.methods.pacfl import PRESETS as PACFL_PRESETS
from jaxfl.methods.pacfl import pacfl as pacfl
from jaxfl.methods.perfedavg import perfedavg as perfedavg
from jaxfl.methods.pfedgraph import PRESETS as PFEDGRAPH_PRESETS
from jaxfl.methods.pfedgraph import pfedgraph as pfedgraph
from jaxfl.methods.pfedme import PRESETS as PFEDME_PRESETS
from jaxfl.methods.pfedme import pfedme as pfedme
from jaxfl.methods.reptile import feddist as feddist
from jaxfl.methods.reptile import feddws as feddws
from jaxfl.methods.robust import robust as robust
from jaxfl.methods.scaffold import scaffold as scaffold
from jaxfl.methods.stocfl import PRESETS as STOCFL_PRESETS
from jaxfl.methods.stocfl import stocfl
from jaxfl.methods.wecfl import PRESETS as WECFL_PRESETS
from jaxfl.methods.wecfl import wecfl as wecfl

SINGLE_MODELS = "its server compares the models of single clients, and does not add them up"

# What newcomers need, see `jaxfl.methods.newcomer`.
TUNED = Newcomer("labels", "the global model, fine-tuned", passes="`finetune_epochs`, training")
FIRST_MODEL = Newcomer(
    "labels",
    "the centre nearest to its first model",
    passes="`first_epochs`, training",
    down="2 models",
    up="1 model",
)
FIRST_SKETCH = FIRST_MODEL._replace(up="a sketch of its first model")
LOWEST_LOSS = (Newcomer("labels", "the model with the lowest loss", passes="K, forward", down="K models"),)
LOWEST_SUM = (
    Newcomer(
        "labels",
        "the global model, and the cluster's with which it has the lowest loss",
        passes="K + 1, forward",
        down="K + 1 models",
    ),
)
ADDED_CENTRE = (
    FIRST_MODEL._replace(down="3 models"),
    Newcomer(
        "labels",
        "the centre that training beside the global model moves the least",
        passes="K x `local_epochs`, training",
        down="K + 1 models",
        joins=True,
    ),
)
OWN_MIXTURE = (
    Newcomer("nothing", "the mixture with equal weights", down="K models"),
    Newcomer(
        "labels",
        "the mixture with weights of its own, better in every round",
        passes="K in every round, forward",
        down="K models in every round",
        options={"estimate": "everybody"},
    ),
    Newcomer(
        "labels",
        "the mixture with weights of its own",
        passes="K, forward",
        down="K models",
        joins=True,
    ),
)
TREE_OF_SPLITS = (
    Newcomer(
        "labels",
        "the cluster that the tree of splits leads to",
        passes="`local_epochs` for each split on its way, training",
        down="1 model for each split on its way, and its cluster's",
        up="a sketch of its update for each split",
    ),
)

GLOBAL: dict[str, Row] = {  # one model for all clients
    "fedavg": Row(
        fedavg, "one global model, averaged local models", "McMahan et al., AISTATS 2017", newcomers=GLOBAL_MODEL
    ),
    "fedsgd": Row(
        fedsgd,
        "one global model, averaged full-batch gradients",
        "McMahan et al., AISTATS 2017",
        newcomers=GLOBAL_MODEL,
    ),
    "fedprox": Row(fedprox, "FedAvg with a proximal term", "Li et al., MLSys 2020", newcomers=GLOBAL_MODEL),
    "feddane": Row(
        feddane,
        "FedAvg with steps corrected by the cohort's gradient",
        "Li et al., Asilomar 2019",
        newcomers=GLOBAL_MODEL,
    ),
    "fednova": Row(
        fednova,
        "FedAvg of updates that are normalised by their numbers of local steps",
        "Wang et al., NeurIPS 2020",
        presets=FEDNOVA_PRESETS,
        no_wire=FEDNOVA_NO_WIRE,
        newcomers=GLOBAL_MODEL,
    ),
    "scaffold": Row(
        scaffold,
        "FedAvg with steps corrected by control variates of the clients and the server",
        "Karimireddy et al., ICML 2020",
        newcomers=GLOBAL_MODEL,
    ),
    "feddyn": Row(
        feddyn,
        "FedProx with a linear term that makes local optima agree",
        "Acar et al., ICLR 2021",
        presets=FEDDYN_PRESETS,
        newcomers=GLOBAL_MODEL,
    ),
    "feddist": Row(
        feddist,
        "a step towards the mean of the local models",
        "Nichol et al., 2018; Long et al., 2022",
        newcomers=GLOBAL_MODEL,
    ),
    "feddws": Row(feddws, "FedDist weighted by rows", "Nichol et al., 2018; Long et al., 2022", newcomers=GLOBAL_MODEL),
}

PERSONAL: dict[str, Row] = {  # a model for each client, or a part of one
    "local": Row(
        local,
        "every client trains alone",
        "baseline",
        no_wire="its clients send nothing",
        newcomers=(Newcomer("nothing", "the initial model"),),
    ),
    "fedavg_ft": Row(
        fedavg_ft,
        "FedAvg, fine-tuned by each client before it is served",
        "McMahan et al., AISTATS 2017; baseline",
        newcomers=(TUNED,),
    ),
    "fedprox_ft": Row(
        fedprox_ft,
        "FedProx, fine-tuned by each client with its pull before it is served",
        "Li et al., MLSys 2020; baseline",
        newcomers=(TUNED,),
    ),
    "ditto": Row(
        ditto,
        "a model for each client, pulled to the global one",
        "Li et al., ICML 2021",
        newcomers=(
            Newcomer("nothing", "what its solver serves: of FedAvg, the global model"),
            Newcomer("nothing", "the initial model", options={"newcomers": "initial"}),
        ),
    ),
    "fedper": Row(
        fedper,
        "shared base layers, a head for each client",
        "Arivazhagan et al., 2019",
        small={"personal": "bias"},
        newcomers=(Newcomer("nothing", "the shared base under the initial head"),),
    ),
    "fedrep": Row(
        fedrep,
        "FedPer with clients that train their head first, then the base",
        "Collins et al., ICML 2021",
        small={"personal": "bias", "head_epochs": 2},
        newcomers=(Newcomer("nothing", "the shared base under the initial head"),),
    ),
    "fedpac": Row(
        fedpac,
        "a shared base with aligned features, under the best combination of all heads for each client",
        "Xu et al., ICLR 2023",
        no_wire=FEDPAC_NO_WIRE,
        newcomers=(
            Newcomer("nothing", "the shared base under the initial head"),
            Newcomer("nothing", "the shared base under the mean of the trained heads", options={"newcomers": "mean"}),
        ),
    ),
    "fedccfa": Row(
        fedccfa,
        "a shared base under heads that clients share class by class, in clusters found anew in each round",
        "Chen et al., NeurIPS 2024",
        small={"align_from": 1},
        no_wire=FEDCCFA_NO_WIRE,
        newcomers=(Newcomer("nothing", "the shared base under the initial head"),),
    ),
    "fedrod": Row(
        fedrod,
        "a shared network with a generic head for balanced classes, and a personal head on top of it",
        "Chen and Chao, ICLR 2022",
        newcomers=(Newcomer("nothing", "the network with its generic head"),),
    ),
    "feddbe": Row(
        feddbe,
        "FedAvg with a personal shift of each client's features, and their mean pulled to that of all clients",
        "Zhang et al., NeurIPS 2023",
        newcomers=(Newcomer("nothing", "the network without a shift"),),
    ),
    "fedproto": Row(
        fedproto,
        "a model for each client, pulled to the clients' mean features of each class; no model is sent",
        "Tan et al., AAAI 2022",
        no_wire=FEDPROTO_NO_WIRE,
        newcomers=(
            Newcomer(
                "nothing", "the initial network, with all prototypes", down="the initial model and the prototypes"
            ),
        ),
    ),
    "lg_fedavg": Row(
        lg_fedavg,
        "personal layers below a shared network",
        "Liang et al., 2020",
        small={"shared": "kernel", "warmup_rounds": 1},
        no_wire=LG_FEDAVG_NO_WIRE,
        newcomers=(Newcomer("nothing", "the shared layers on the personal ones of the warm-up"),),
    ),
    "fedbn": Row(
        fedbn,
        "FedAvg with personal normalisation layers",
        "Li et al., ICLR 2021",
        small={"personal": "bias"},
        network="mlp-batch-norm",
        newcomers=(Newcomer("nothing", "the shared layers with the initial normalisation"),),
    ),
    "fedbabu": Row(
        fedbabu,
        "a shared body under a head that stays as it was drawn, fine-tuned by each client",
        "Oh et al., ICLR 2022",
        small={"personal": "bias"},
        newcomers=(
            Newcomer("labels", "the model, fine-tuned", passes="`finetune_epochs`, training"),
            Newcomer("nothing", "the body under the head that was drawn", options={"finetune_epochs": 0}),
        ),
    ),
    "perfedavg": Row(
        perfedavg,
        "a global model that is adapted to a client by one gradient step",
        "Fallah et al., NeurIPS 2020",
        adapts="adaptation_rate",
        newcomers=(Newcomer("nothing", "the global model; its step for the second test takes labelled rows"),),
    ),
    "knnper": Row(
        knnper,
        "FedAvg, whose predictions are mixed with those of a client's most similar training rows",
        "Marfoq et al., ICML 2022",
        small={"capacity": 16},
        presets=KNNPER_PRESETS,
        newcomers=(Newcomer("labels", "the global model, mixed with its own rows", passes="1, forward"),),
    ),
    "apfl": Row(
        apfl, "a mixture of the global model and a personal model", "Deng et al., 2020", newcomers=GLOBAL_MODEL
    ),
    "pfedme": Row(
        pfedme,
        "personal models that are proximal points of the global one",
        "T. Dinh et al., NeurIPS 2020",
        small={"proximal_weight": 1.0, "outer_rate": 0.5},
        presets=PFEDME_PRESETS,
        newcomers=GLOBAL_MODEL,
    ),
    "fedala": Row(
        fedala,
        "FedAvg, whose model each client mixes into its last one, number by number, before it trains",
        "Zhang et al., AAAI 2023",
        small={"personal": "bias"},
        newcomers=GLOBAL_MODEL,
    ),
    "fedamp": Row(
        fedamp,
        "personal models, pulled to a mean of similar models",
        "Huang et al., AAAI 2021",
        no_wire=SINGLE_MODELS,
        newcomers=(Newcomer("nothing", "the initial model"),),
    ),
    "pfedgraph": Row(
        pfedgraph,
        "personal models, mixed from those of the cohort by a graph of similar clients",
        "Ye et al., ICML 2023",
        presets=PFEDGRAPH_PRESETS,
        no_wire=SINGLE_MODELS,
        newcomers=(Newcomer("nothing", "the mean of all trained models"),),
    ),
}

CLUSTERED: dict[str, Row] = {  # a model for each cluster
    "ifca": Row(
        ifca,
        "K models, each client trains the one with the lowest loss",
        "Ghosh et al., NeurIPS 2020",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=LOWEST_LOSS,
    ),
    "clove": Row(
        clove,
        "K models, clients clustered by the vectors of all models' losses",
        "Bhatia et al., ICML 2026",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=(
            Newcomer(
                "labels",
                "the model of the nearest vector of losses",
                passes="K, forward",
                down="K models",
                up="K losses",
            ),
        ),
    ),
    "hypcluster": Row(
        hypcluster,
        "IFCA weighted by rows, with warm starts and a server optimiser for each cluster",
        "Mansour et al., 2020",
        small={"num_clusters": 2, "start": "random"},
        finds_clusters=True,
        newcomers=LOWEST_LOSS,
    ),
    "fesem": Row(
        fesem,
        "K centres, each client joins the one closest to its local model",
        "Long et al., World Wide Web 2022",
        small={"num_clusters": 2},
        finds_clusters=True,
        presets=FESEM_PRESETS,
        newcomers=(FIRST_MODEL,),
    ),
    "fesem_ma": Row(
        fesem_ma,
        "FeSEM with neurons that are matched before they are averaged",
        "Long et al., World Wide Web 2022",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=(FIRST_MODEL,),
    ),
    "wecfl": Row(
        wecfl,
        "K centres, with clients weighted by rows in the clustering and in the means",
        "Ma et al., 2022",
        small={"num_clusters": 2},
        finds_clusters=True,
        presets=WECFL_PRESETS,
        newcomers=(
            FIRST_MODEL,
            Newcomer(
                "labels",
                "the centre that training moves the least",
                passes="K x `local_epochs`, training",
                down="K models",
                joins=True,
            ),
        ),
    ),
    "ifca_cam": Row(
        ifca_cam,
        "IFCA with a global model that is added to the model of each cluster",
        "Ma et al., NeurIPS 2023",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=LOWEST_SUM,
    ),
    "fesem_cam": Row(
        fesem_cam,
        "FeSEM with a global model that is added to the model of each cluster",
        "Ma et al., NeurIPS 2023",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=ADDED_CENTRE,
    ),
    "wecfl_cam": Row(
        wecfl_cam,
        "WeCFL with a global model that is added to the model of each cluster",
        "Ma et al., NeurIPS 2023",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=ADDED_CENTRE,
    ),
    "stocfl": Row(
        stocfl,
        "clusters found by gradient similarity, pulled to a global model",
        "Zeng et al., 2023",
        small={"slots": 8},
        finds_clusters=True,
        presets=STOCFL_PRESETS,
        newcomers=(
            Newcomer(
                "labels",
                "the cluster with the nearest Psi",
                passes="1, gradient",
                down="2 models",
                up="Psi, a gradient",
            ),
            Newcomer(
                "labels",
                "the cluster with the nearest Psi",
                passes="`representation_epochs`, training",
                down="2 models",
                up="Psi, an update",
                options={"representation": "displacement"},
            ),
        ),
    ),
    "feddrift": Row(
        feddrift,
        "new models for clients with drifted data, which merge where they are similar",
        "Jothimurugesan et al., AISTATS 2023",
        small={"rounds_per_step": 1, "start": "own", "measure": "loss", "merge_threshold": 0.3, "slots": 8},
        finds_clusters=True,
        newcomers=(
            Newcomer(
                "labels",
                "the model of the pool with the lowest risk",
                passes="1 for each model of the pool, forward",
                down="all models of the pool",
            ),
        ),
    ),
    "cfl": Row(
        cfl,
        "clusters split in two where updates disagree",
        "Sattler et al., IEEE TNNLS 2020",
        small={"sketch_size": None},
        finds_clusters=True,
        presets=CFL_PRESETS,
        newcomers=TREE_OF_SPLITS,
    ),
    "layercfl": Row(
        layercfl,
        "CFL by the updates of one layer",
        "Yuan et al., Cybersecurity 2023",
        small={"sketch_size": None},
        finds_clusters=True,
        presets=LAYERCFL_PRESETS,
        newcomers=TREE_OF_SPLITS,
    ),
    "adacfl": Row(
        adacfl,
        "CFL by the weights of the dense layers",
        "Gong et al., Mobile Networks and Applications 2022",
        small={"sketch_size": None},
        finds_clusters=True,
        presets=LAYERCFL_PRESETS,
        newcomers=TREE_OF_SPLITS,
    ),
    "flhc": Row(
        flhc,
        "clusters found once, after some rounds, by linkage of all clients' updates",
        "Briggs et al., IJCNN 2020",
        small={"warmup_rounds": 1, "slots": 8},
        finds_clusters=True,
        newcomers=(
            Newcomer(
                "labels",
                "the cluster of the client with the nearest update",
                passes="`local_epochs`, training",
                down="2 models",
                up="a sketch of its update",
            ),
        ),
    ),
    "flux": Row(
        flux,
        "clusters found once, after some rounds, by statistics of the clients' features",
        "Fenoglio et al., NeurIPS 2025",
        small={"warmup_rounds": 1, "slots": 8},
        newcomers=(
            Newcomer(
                "inputs",
                "the cluster with the nearest statistics of all its features",
                passes="1, forward",
                down="2 models",
                up="means and deviations of projected features",
            ),
            Newcomer(
                "labels",
                "the cluster with the nearest statistics of its features by class",
                passes="1, forward",
                down="2 models",
                up="means and deviations of projected features by class",
                options={"newcomers": "labelled"},
            ),
        ),
    ),
    "cfl_gp": Row(
        cfl_gp,
        "K models that take turns, clients clustered by the updates that they have made of each",
        "Kim et al., ICML 2024",
        small={"num_clusters": 2},
        finds_clusters=True,
        presets=CFL_GP_PRESETS,
        newcomers=(
            Newcomer(
                "labels",
                "the cluster with the nearest profile",
                passes="K x `local_epochs`, training",
                down="K models, and its cluster's",
                up="K sketches of updates",
            ),
        ),
    ),
    "kfed": Row(
        kfed,
        "clusters found once from the clients' updates, with farthest-first seeds",
        "Dennis et al., ICML 2021",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=(FIRST_SKETCH,),
    ),
    "robust": Row(
        robust,
        "clusters found once by trimmed k-means, trained by trimmed means",
        "Ghosh et al., 2019",
        small={"num_clusters": 2},
        finds_clusters=True,
        no_wire=SINGLE_MODELS,
        newcomers=(FIRST_SKETCH,),
    ),
    "fedgroup": Row(
        fedgroup,
        "clusters found once from the directions of the clients' first updates",
        "Duan et al., 2020",
        small={"num_clusters": 2},
        finds_clusters=True,
        newcomers=(
            Newcomer(
                "labels",
                "the group with the nearest direction",
                passes="`first_epochs`, training",
                down="2 models",
                up="its first update",
            ),
        ),
    ),
    "fedgwc": Row(
        fedgwc,
        "clusters split by the losses that clients meet in training",
        "Licciardi et al., ICML 2025",
        small={"eps": float("inf"), "gamma": 3.0},
        presets=FEDGWC_PRESETS,
        newcomers=LOWEST_LOSS,
    ),
    "pacfl": Row(
        pacfl,
        "clusters found once, by the angles between the subspaces of the clients' inputs",
        "Vahidian et al., AAAI 2023",
        small={"rank": 1, "threshold": 45.0, "slots": 8},
        presets=PACFL_PRESETS,
        newcomers=(
            Newcomer("inputs", "the cluster of the client with the nearest subspace", up="`rank` singular vectors"),
            Newcomer(
                "labels",
                "the cluster of the client with the nearest subspaces",
                up="`rank` singular vectors of each label",
                options={"vectors": "label"},
            ),
        ),
    ),
    "fedem": Row(
        fedem,
        "K models, each client is served a mixture of them",
        "Marfoq et al., NeurIPS 2021",
        small={"num_clusters": 2, "mean_over": "everybody"},
        presets=FEDEM_PRESETS,
        newcomers=OWN_MIXTURE,
    ),
    "fedrc": Row(
        fedrc,
        "FedEM whose learners are also told apart by the labels that they are responsible for",
        "Guo et al., ICML 2024",
        small={"num_clusters": 2},
        presets=FEDRC_PRESETS,
        newcomers=OWN_MIXTURE,
    ),
    "fedsoft": Row(
        fedsoft,
        "K centres, a model for each client, pulled to a mixture of them",
        "Ruan and Joe-Wong, AAAI 2022",
        presets=FEDSOFT_PRESETS,
        newcomers=(
            Newcomer("nothing", "the mixture of the centres with equal weights", down="K models"),
            Newcomer(
                "labels",
                "the mixture of the centres with weights of its own, when they are estimated",
                passes="K every `estimate_every` rounds, forward",
                down="K models every `estimate_every` rounds",
                options={"estimate": "everybody"},
            ),
            Newcomer("nothing", "the initial model", options={"newcomers": "initial"}),
            Newcomer(
                "labels",
                "the centre that wins most of its rows",
                passes="K, forward",
                down="K models",
                options={"served": "cluster"},
            ),
        ),
    ),
}

KINDS = {"global": GLOBAL, "personalised": PERSONAL, "clustered": CLUSTERED}
METHODS: dict[str, Row] = {**GLOBAL, **PERSONAL, **CLUSTERED}

__all__ = ["KINDS", "METHODS", "Info", "Method", "Row", *METHODS]  # pyright: ignore[reportUnsupportedDunderAll]
