# SPDX-License-Identifier: Apache-2.0
"""Rules (rules.py) of operators on boxes and on places that tensors name."""
import numpy as np

from rules import rule, scalar


@rule("NonMaxSuppression")
def non_max_suppression(node):
    """Rows that the count leaves are cut off; 0 boxes of a class, the default, are none."""
    boxes, scores, limit, iou, score = (list(node.inputs) + [None] * 3)[:5]
    if limit is None or scalar(limit) <= 0:
        return [np.zeros((0, 3), np.int64)]
    thresholds = {name: scalar(value) for name, value in (("iou_threshold", iou), ("score_threshold", score)) if value is not None}
    selected, count = node.run("nms", results=("selected", "count"), boxes=boxes, scores=scores, limit=scalar(limit),
                               format="center" if node("center_point_box", 0) else "corners", **thresholds)
    return [selected[: scalar(count)]]
