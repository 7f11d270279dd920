"""Which samples a pass sees."""

from __future__ import annotations

import pytest
import torch

from fedproc.lanes.batches import clean_rows


@pytest.mark.parametrize("width", [4, 5, 100])
def test_rows_of_a_clean_pass_hold_every_sample_once_and_in_order(width: int) -> None:
    shares = [torch.tensor([7, 3, 9, 1, 4]), torch.tensor([8]), torch.tensor([0, 2, 5, 6, 10, 11, 12, 13, 14])]
    plan, each = clean_rows(shares, width)
    assert plan.mask is not None and plan.index.shape == plan.mask.shape == (sum(each), min(width, 9))
    first = 0
    for share, rows in zip(shares, each, strict=True):
        some = slice(first, first + rows)
        assert plan.index[some][plan.mask[some]].tolist() == share.tolist()
        assert plan.mask[some].any(dim=1).all(), "a row of nobody"
        first += rows
    assert first == len(plan.index)
