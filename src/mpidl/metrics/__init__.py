"""Metrics: figures of a model's quality beside the loss, computed from sums over the samples."""

from __future__ import annotations

from mpidl.metrics.builtin import F1, R2, Auc, MeanAbsoluteError, MeanSquaredError, Top5Accuracy
from mpidl.metrics.metric import Metric, RowMetric

METRICS: dict[str, type[RowMetric]] = {
    metric.name: metric for metric in (Top5Accuracy, MeanSquaredError, MeanAbsoluteError, R2, F1, Auc)
}
"""The metrics by their names in ``run.metrics``."""

__all__ = ["F1", "METRICS", "R2", "Auc", "MeanAbsoluteError", "MeanSquaredError", "Metric", "Top5Accuracy"]
