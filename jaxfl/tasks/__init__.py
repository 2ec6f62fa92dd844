"""Tasks: the initial model, the loss of a batch, and the metrics of test rows.

`contract` defines a task; `kinds` has a task for every kind of labels; `networks` builds the task of any network;
`mixture` has several models, each trained under weights of rows, or all served as one; `additive` adds the outputs of
two; `augmentation` changes training images; `class_metrics` has optional metrics.
"""

from jaxfl.tasks.additive import additive, residual_task
from jaxfl.tasks.augmentation import augmented
from jaxfl.tasks.class_metrics import with_metrics
from jaxfl.tasks.contract import (
    Averages,
    DenseLayers,
    FastForms,
    Products,
    Task,
    check_trains,
    masked_mean,
    row_losses,
    with_head,
    without_averages,
    without_dropout,
)
from jaxfl.tasks.kinds import TASKS, classification, multilabel, next_token, regression, start_from, supervised
from jaxfl.tasks.metrics import ACCURACY, Metrics
from jaxfl.tasks.mixture import for_each, mixture, with_row_weights

__all__ = [
    "ACCURACY",
    "TASKS",
    "Averages",
    "DenseLayers",
    "FastForms",
    "Metrics",
    "Products",
    "Task",
    "additive",
    "augmented",
    "check_trains",
    "classification",
    "for_each",
    "masked_mean",
    "mixture",
    "multilabel",
    "next_token",
    "regression",
    "residual_task",
    "row_losses",
    "start_from",
    "supervised",
    "with_head",
    "with_metrics",
    "with_row_weights",
    "without_averages",
    "without_dropout",
]
