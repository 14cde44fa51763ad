# SPDX-License-Identifier: Apache-2.0
"""Rules (rules.py) of operators on boxes and on places that tensors name."""
import numpy as np

from rules import need, rule, scalar


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


@rule("DeformConv")
def deform_conv(node):
    x, w, offset, bias, mask = (list(node.inputs) + [None] * 2)[:5]
    need(x.ndim == 4, "deformable convolution has two axes")
    pads = node("pads", [0, 0, 0, 0])
    first, extra = pads[:2], [pads[2] - pads[0], pads[3] - pads[1]]
    given = {name: array for name, array in (("bias", bias), ("mask", mask)) if array is not None}
    return [node.run("deform_conv", x=x, w=w, offset=offset, pad=first, pad_extra=extra, stride=node("strides", [1, 1]),
                     dilation=node("dilations", [1, 1]), groups=node("group", 1), offset_groups=node("offset_group", 1), **given)]
