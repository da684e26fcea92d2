"""What a checkpointed solve keeps: copies, in pieces that double."""

import torch

from continua.solve import StateBuffer


def test_what_is_kept_is_a_copy():
    shelf, points = StateBuffer(), torch.randn(2, 3, 4)
    kept, before = shelf.put(points), points.clone()
    points.zero_()
    assert torch.equal(kept, before)


def test_pieces_double_and_no_two_rows_share_memory():
    shelf = StateBuffer()
    kept = [shelf.put(torch.full((1, 1, 5), float(i))) for i in range(50)]
    assert [row[0, 0, 0].item() for row in kept] == list(range(50))
    pieces = list(dict.fromkeys(row.untyped_storage().data_ptr() for row in kept))
    rows = [sum(row.untyped_storage().data_ptr() == piece for row in kept) for piece in pieces]
    assert rows == [1, 2, 4, 8, 16, 16, 3]
    assert len({row.data_ptr() for row in kept}) == 50


def test_dtype_and_shape_are_kept():
    row = StateBuffer().put(torch.ones(1, 2, 3, dtype=torch.float64))
    assert row.dtype == torch.float64 and row.shape == (1, 2, 3)
